"""New distributed tensors, of which a rank allocates only what it holds: the same values in every layout."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.autograd import random
from hpcdist.comm.mesh import DeviceMesh
from hpcdist.dtensor.distribute import as_leaf, chosen, placed_as
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Placement
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain

__all__ = ["arange", "empty", "eye", "from_function", "full", "ones", "rand", "randn", "zeros"]

Size: TypeAlias = int | Sequence[int]


class Options(TypedDict, total=False):
    """What all functions here take by name.

    Attributes
    ----------
    requires_grad : bool
        Default: False.
    dtype : dtype
        Default: float32, unless a function says otherwise.
    device_mesh : DeviceMesh
        Default: that of the ``with`` block.
    placements : sequence of Placement
        One an axis; default: Invariant. Of a Partial (sum or avg) coordinate 0 keeps the values, the others zeros.
    order : sequence of int
        See :class:`hpcdist.dtensor.Layout`.
    """

    requires_grad: bool
    dtype: npt.DTypeLike | None
    device_mesh: DeviceMesh | None
    placements: Sequence[Placement] | None
    order: Sequence[int] | None


# ---------------------------------------------------------------- constants
def zeros(*size: Size, **options: Unpack[Options]) -> DTensor:
    """Return zeros of a shape, given as integers or a sequence of them; see :class:`Options`."""
    return _made("zeros", size, options, lambda held, dtype: np.zeros(held.local_shape, dtype))


def ones(*size: Size, **options: Unpack[Options]) -> DTensor:
    """Return ones of a shape, given as integers or a sequence of them; see :class:`Options`."""
    return _made("ones", size, options, lambda held, dtype: np.ones(held.local_shape, dtype))


def empty(*size: Size, **options: Unpack[Options]) -> DTensor:
    """Return an array of a shape, given as integers or a sequence of them, with any values; see :class:`Options`."""
    return _made("empty", size, options, lambda held, dtype: np.empty(held.local_shape, dtype))


def full(size: Size, fill_value: complex, **options: Unpack[Options]) -> DTensor:
    """Return an array of one value, by default of its dtype (a Python float is float32); see :class:`Options`."""
    return from_function(lambda *_: fill_value, size, **options)


# ---------------------------------------------------------------- values that follow from the index
def from_function(fn: Callable[..., Any], shape: Size, **options: Unpack[Options]) -> DTensor:
    """Return the array whose elements ``fn`` computes from their global indices, as ``numpy.fromfunction`` does.

    Parameters
    ----------
    fn : function
        Gets an array of int64 a dimension, which broadcast against each other: the indices that this rank holds. It
        returns the values there, or something that broadcasts to them.
    shape : sequence of int, or int
        Of the whole.
    options
        See :class:`Options`; the default dtype is that of the values (float32 for a Python float).
    """

    def values(held: Layout, dtype: np.dtype[Any] | None) -> Array:
        found = fn(*_grid(held))
        out: Array = np.empty(held.local_shape, _dtype_of(found) if dtype is None else dtype)
        out[...] = found
        return out

    return _made("from_function", (shape,), options, values, default=None)


def arange(start: float, end: float | None = None, step: float = 1, **options: Unpack[Options]) -> DTensor:
    """Return ``start``, ``start + step``, ... below ``end``; with one argument from 0 up to it.

    The default dtype is int64 if all arguments are integers.

    Raises
    ------
    ValueError
        If ``step`` is zero.
    """
    first, last = (0, start) if end is None else (start, end)
    if step == 0:
        raise ValueError(explain("arange: step", got=step, expected="a number that is not zero"))
    n = max(math.ceil((last - first) / step), 0)
    if options.get("dtype") is None:
        whole = all(isinstance(x, (int, np.integer)) for x in (first, last, step))
        options["dtype"] = np.int64 if whole else np.float32
    return from_function(lambda i: first + i * step, n, **options)


def eye(n: int, m: int | None = None, **options: Unpack[Options]) -> DTensor:
    """Return ``n`` rows and ``m`` (default ``n``) columns with ones on the diagonal; see :class:`Options`."""
    if options.get("dtype") is None:
        options["dtype"] = np.float32
    return from_function(lambda row, column: row == column, (n, n if m is None else m), **options)


# ---------------------------------------------------------------- random numbers
def rand(*size: Size, **options: Unpack[Options]) -> DTensor:
    """Return numbers drawn uniformly from [0, 1); see :class:`Options`.

    Every rank of the mesh calls it at the same point of its draws; the numbers do not depend on mesh or placements.
    """
    return _made("rand", size, options, _drawing("rand", random.uniform))


def randn(*size: Size, **options: Unpack[Options]) -> DTensor:
    """Return standard normal numbers; see :func:`rand`."""
    return _made("randn", size, options, _drawing("randn", random.normal))


def _drawing(name: str, draw: Callable[..., Array]) -> Callable[[Layout, Any], Array]:
    def values(held: Layout, dtype: np.dtype[Any]) -> Array:
        if dtype.kind not in "fV":
            raise TypeError(explain(f"{name}: dtype", got=dtype, expected="a floating one"))
        return draw(random.next_key(name), held.local_shape, dtype, held.flat_index)

    return values


# ---------------------------------------------------------------- making one
def _made(
    what: str,
    size: tuple[Size, ...],
    options: Options,
    values: Callable[[Layout, Any], Array],
    default: npt.DTypeLike | None = np.float32,
) -> DTensor:
    """Return a leaf of what ``values(layout, dtype)`` returns: the values that this rank holds."""
    mesh, placements = chosen(what, options.get("device_mesh"), options.get("placements"))
    target = placed_as(mesh, placements, _shape(what, size), options.get("order"))
    given = options.get("dtype")
    dtype = default if given is None else given
    held = values(target.settled, None if dtype is None else np.dtype(dtype))
    return as_leaf(held, target, options.get("requires_grad", False))


def _shape(what: str, size: tuple[Size, ...]) -> tuple[int, ...]:
    numbers: Any = size[0] if len(size) == 1 and not hasattr(size[0], "__index__") else size
    shape = tuple(operator.index(n) for n in numbers)
    if any(n < 0 for n in shape):
        raise ValueError(explain(f"{what}: size", got=shape, expected="no negative number"))
    return shape


def _grid(held: Layout) -> list[Array]:
    """Return the global indices that this rank holds, one array a dimension, so that they broadcast."""
    ndim = len(held.shape)
    lines = [held.indices_at(dim, held.coordinate) for dim in range(ndim)]
    return [line.reshape([-1 if i == dim else 1 for i in range(ndim)]) for dim, line in enumerate(lines)]


def _dtype_of(values: Any) -> np.dtype[Any]:
    """Return the dtype of an array or NumPy number; Python's floating and complex numbers are of single precision."""
    if hasattr(values, "dtype"):
        return np.dtype(values.dtype)
    return np.result_type({float: np.float32, complex: np.complex64}.get(type(values), np.asarray(values)))
