"""In which precision parameters travel, are computed with, and gradients are reduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.array import Array, is_device
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
            if value is not None and np.dtype(value).kind not in "fV":
                raise ValueError(explain(f"MixedPrecisionPolicy: {name}", got=value, expected="a floating dtype"))

    def travels(self, data: Array) -> Any:
        """Return the dtype in which a parameter is gathered."""
        floating = data.dtype.kind in "fV"
        return data.dtype if self.param_dtype is None or not floating else np.dtype(self.param_dtype)

    def computes(self, data: Array) -> Any:
        """Return the dtype in which a gathered parameter is computed with."""
        travels = self.travels(data)
        if travels == data.dtype or is_device(data):
            return travels
        return wide(np.empty(0, travels)).dtype
