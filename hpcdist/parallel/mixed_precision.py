"""In which precision parameters travel, are computed with, and gradients are reduced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.array import Array, is_device
from hpcdist.autograd.operand import wrapped
from hpcdist.errors import explain
from hpcdist.kernels.precision import wide

__all__ = ["MixedPrecisionPolicy"]


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Precision of a unit; what rests on a rank, and what the optimizer sees, keeps its own.

    On a CPU, 16-bit values are what travels: parameters and inputs are rounded to them, and computed with in float32.

    Attributes
    ----------
    param_dtype : dtype, optional
        In which parameters are gathered; None: their own. bfloat16 (``ml_dtypes``) halves the bytes of float32.
    reduce_dtype : dtype, optional
        In which gradients are reduced; None: that in which they are computed.
    output_dtype : dtype, optional
        To which floating outputs of the module are cast.
    cast_forward_inputs : bool
        Whether floating inputs are rounded to ``param_dtype``.
    """

    param_dtype: Any = None
    reduce_dtype: Any = None
    output_dtype: Any = None
    cast_forward_inputs: bool = True

    def __post_init__(self) -> None:
        for name in ("param_dtype", "reduce_dtype", "output_dtype"):
            value = getattr(self, name)
            if value is not None and not _is_floating(value):
                expected = "a floating dtype, such as numpy.float16 or ml_dtypes.bfloat16"
                raise ValueError(explain(f"MixedPrecisionPolicy: {name}", got=value, expected=expected))

    def travels(self, data: Array) -> Any:
        """Return the dtype in which a parameter is gathered."""
        floating = data.dtype.kind in "fV"
        return data.dtype if self.param_dtype is None or not floating else np.dtype(self.param_dtype)

    def computes(self, data: Array, like: Array) -> Any:
        """Return the dtype in which a gathered parameter is computed with where ``like`` is."""
        travels = self.travels(data)
        if travels == data.dtype or is_device(like):
            return travels
        return wide(np.empty(0, travels)).dtype

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Cast what goes into a module and what comes out."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self.param_dtype is not None and self.cast_forward_inputs:
                args, kwargs = _cast(args, self._rounded), _cast(kwargs, self._rounded)
            result = call(*args, **kwargs)
            return result if self.output_dtype is None else _cast(result, lambda x: x.to(self.output_dtype))

        return run

    def _rounded(self, x: Any) -> Any:
        """Return values of ``param_dtype``, in the dtype that is computed with."""
        return x.to(self.param_dtype).to(self.computes(x.data, x.data))


def _is_floating(dtype: Any) -> bool:
    try:
        return np.dtype(dtype).kind in "fV"
    except TypeError:
        return False


def _cast(value: Any, cast: Callable[[Any], Any]) -> Any:
    """Cast the floating tensors and arrays in nested tuples, lists and dicts."""
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(v, cast) for v in value)
    if isinstance(value, dict):
        return {key: _cast(v, cast) for key, v in value.items()}
    floating = hasattr(value, "dtype") and np.dtype(value.dtype).kind in "fV"
    return cast(wrapped(value)) if floating else value
