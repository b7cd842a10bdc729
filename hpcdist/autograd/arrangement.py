"""Functions that arrange and pick elements, under the names and with the arguments of torch's."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.autograd.operand import Operand, call, wrapped
from hpcdist.autograd.ops.reduce import Dims, reduced
from hpcdist.autograd.tensor import Tensor
from hpcdist.errors import explain

__all__ = [
    "broadcast_to", "cat", "complex", "conj", "flatten", "gather", "imag", "index_select", "pad", "permute", "real",
    "reshape", "scatter_add", "split", "squeeze", "stack", "take_along_dim", "unsqueeze", "view_as_complex",
    "view_as_real",
]  # fmt: skip


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the elements in another shape; one extent may be -1."""
    return x.reshape(shape)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Make one dimension of those from ``start_dim`` to ``end_dim``, which is included."""
    return x.flatten(start_dim, end_dim)


def squeeze(x: Tensor, dim: Dims = None) -> Tensor:
    """Remove dimensions of extent one: those of ``dim`` that have it, or all."""
    return x.squeeze(dim)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Insert a dimension of extent one at ``dim``."""
    return x.unsqueeze(dim)


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the dimensions in another order."""
    return x.permute(dims)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Stretch dimensions of extent one to ``shape``, with new dimensions in front."""
    return call("broadcast_to", x, shape=tuple(shape))


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors along ``dim``."""
    return call("cat", *tensors, dim=dim)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors of one shape along a new dimension."""
    return call("stack", *tensors, dim=dim)


def split(x: Tensor, sizes: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Cut into pieces of the given sizes (an int: of that size, the last may be shorter) along ``dim``."""
    return x.split(sizes, dim)


def pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    """Put elements around ``x``.

    Parameters
    ----------
    pad : sequence of int
        How many before and after the last dimension, then before and after the one in front of it, and so on. Negative
        ones cut off (``"constant"`` only).
    mode : str
        ``"constant"``, ``"reflect"`` (without the edge), ``"replicate"`` or ``"circular"``.
    value : float
        Of the new elements, for ``"constant"``.
    """
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise ValueError(
            explain("pad: widths", got=tuple(pad), expected=f"a pair for each of the last of {x.ndim} dimensions")
        )
    pairs = [(int(pad[i]), int(pad[i + 1])) for i in range(0, len(pad), 2)]
    widths = (*[(0, 0)] * (x.ndim - len(pairs)), *reversed(pairs))
    return call("pad", x, widths=widths, mode=mode, value=value)


# ---------------------------------------------------------------- picking by index
def take_along_dim(x: Tensor, index: Operand, dim: int | None = None) -> Tensor:
    """Return the elements at ``index`` along ``dim``, at their own place in the other dimensions, which broadcast.

    ``dim`` None: of ``x`` and ``index`` as one row each.
    """
    index = wrapped(index)
    if dim is None:
        return call("take_along_dim", x.flatten(), index.flatten(), dim=0)
    return call("take_along_dim", x, index, dim=dim)


def gather(x: Tensor, dim: int, index: Operand) -> Tensor:
    """Return the elements at ``index`` along ``dim``; elsewhere ``index`` may cover the front part of ``x`` only."""
    index = wrapped(index)
    return call("take_along_dim", _front(x, index, "gather", dim), index, dim=dim)


def scatter_add(x: Tensor, dim: int, index: Operand, src: Tensor) -> Tensor:
    """Return ``x`` with the elements of ``src`` added at ``index`` along ``dim``; ``src`` is cut to its shape."""
    index = wrapped(index)
    return call("scatter_add", x, index, _front(src, index, "scatter_add"), dim=dim)


def index_select(x: Tensor, dim: int, index: Operand) -> Tensor:
    """Return the slices along ``dim`` that ``index`` (n,) names, in its order."""
    return call("index_select", x, wrapped(index), dim=dim)


def _front(x: Tensor, index: Tensor, name: str, free: int | None = None) -> Tensor:
    """Return the part of ``x`` that has the shape of ``index``, except for the dimension ``free``."""
    skip = () if free is None else reduced(x.ndim, free)
    if x.ndim != index.ndim or any(n > x.shape[d] for d, n in enumerate(index.shape) if d not in skip):
        raise ValueError(explain(f"{name}: indices reach past the values", got=f"{index.shape} for {x.shape}"))
    part = tuple(slice(None) if d in skip else slice(n) for d, n in enumerate(index.shape))
    return x if all(d in skip or n == x.shape[d] for d, n in enumerate(index.shape)) else x[part]


# ---------------------------------------------------------------- complex numbers
def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Return ``real + i imag``."""
    return call("complex", real, imag)


def real(x: Tensor) -> Tensor:
    """Return the real parts; real values are returned as they are."""
    return call("real", x) if x.dtype.kind == "c" else x


def imag(x: Tensor) -> Tensor:
    """Return the imaginary parts."""
    return call("imag", x)


def conj(x: Tensor) -> Tensor:
    """Return the complex conjugates."""
    return call("conj", x)


def view_as_real(x: Tensor) -> Tensor:
    """Return [real, imaginary] of each element in a new last dimension."""
    return call("view_as_real", x)


def view_as_complex(x: Tensor) -> Tensor:
    """Undo :func:`view_as_real`."""
    return call("view_as_complex", x)
