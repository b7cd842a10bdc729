"""Fourier transforms of real tensors, under the names of torch.fft.

``norm`` says which direction is divided by the number of elements: ``"backward"`` (the default), ``"forward"``, or by
its root each (``"ortho"``). float32 stays float32 and complex64. The gradient of a complex z is
dL/d(Re z) + i dL/d(Im z), as torch's.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.autograd.operand import call
from hpcdist.autograd.ops.reduce import reduced
from hpcdist.autograd.tensor import Tensor

__all__ = ["irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftn"]

LAST_TWO = (-2, -1)


def rfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Transform real ``x`` along ``dim``, cut or filled up with zeros to ``n`` elements, to n // 2 + 1 of them."""
    return rfftn(x, None if n is None else (n,), (dim,), norm)


def irfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Undo :func:`rfft` to ``n`` real elements along ``dim`` (default: an even number)."""
    return irfftn(x, None if n is None else (n,), (dim,), norm)


def rfft2(x: Tensor, s: Sequence[int] | None = None, dim: Sequence[int] = LAST_TWO, norm: str | None = None) -> Tensor:
    """Transform real ``x`` along two dimensions, cut or filled up to ``s``; the last has s[-1] // 2 + 1 afterwards."""
    return rfftn(x, s, dim, norm)


def irfft2(x: Tensor, s: Sequence[int] | None = None, dim: Sequence[int] = LAST_TWO, norm: str | None = None) -> Tensor:
    """Undo :func:`rfft2` to ``s`` real elements (default: an even number of the last)."""
    return irfftn(x, s, dim, norm)


def rfftn(
    x: Tensor, s: Sequence[int] | None = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> Tensor:
    """Transform real ``x`` along ``dim`` (None: as many of the last as ``s`` has, or all)."""
    dims = _dims(x, s, dim)
    extents = _extents(x, dims) if s is None else s
    return call("rfft", x, n=tuple(extents), dim=dims, norm=norm or "backward")


def irfftn(
    x: Tensor, s: Sequence[int] | None = None, dim: Sequence[int] | None = None, norm: str | None = None
) -> Tensor:
    """Undo :func:`rfftn` to ``s`` real elements (default: an even number of the last)."""
    dims = _dims(x, s, dim)
    extents = _extents(x, dims) if s is None else list(s)
    if s is None and extents:
        extents[-1] = 2 * (extents[-1] - 1)
    return call("irfft", x, n=tuple(extents), dim=dims, norm=norm or "backward")


def _extents(x: Tensor, dims: Sequence[int]) -> list[int]:
    return [x.shape[d] for d in reduced(x.ndim, tuple(dims))]


def _dims(x: Tensor, s: Sequence[int] | None, dim: Sequence[int] | None) -> tuple[int, ...]:
    if dim is not None:
        return tuple(dim)
    return tuple(range(-(x.ndim if s is None else len(s)), 0))
