"""Discrete Fourier transforms of real arrays (Cooley and Tukey 1965; half of the spectrum says all).

Gradients follow torch's convention: for a complex z it is dL/d(Re z) + i dL/d(Im z), the direction of steepest ascent.
So a vjp is the adjoint. Of the half spectrum, the elements that stand for a pair (k, n - k) count twice; element 0,
and n / 2 if n is even, stand for themselves, and their imaginary parts, which the inverse ignores, get none.
"""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS
from hpcdist.autograd.ops.reduce import reduced
from hpcdist.kernels.precision import wide

__all__ = ["IRFFT", "RFFT"]

_ADJOINT = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""The norm of the inverse transform that is, but for the counting of pairs, the adjoint."""


def _signature(shapes: list[tuple[int, ...]], *, dim: tuple[int, ...], **_: Any) -> str:
    """Keep the dimensions that are transformed whole."""
    ndim = len(shapes[0])
    gone, names = reduced(ndim, dim), LETTERS[:ndim]
    inside = "".join(f"[{n}]" if i in gone else n for i, n in enumerate(names))
    outside = "".join(f"[{LETTERS[ndim + i]}]" if i in gone else n for i, n in enumerate(names))
    return f"{inside}->{outside}"


def _checked(a: Array, n: tuple[int, ...], dim: tuple[int, ...], norm: str) -> tuple[int, ...]:
    """Return ``dim`` counted from the front."""
    if norm not in _ADJOINT:
        raise ValueError(f"norm is {norm!r}: expected 'backward', 'ortho' or 'forward'")
    dims = reduced(a.ndim, dim)
    if len(set(dims)) < len(dims) or len(n) != len(dims) or not dims:
        raise ValueError(f"expected an extent for each of some different dimensions, not {n} for {dim}")
    if min(n) < 1:
        raise ValueError(f"a transform of {min(n)} elements is not defined")
    return dims


def _fit(a: Array, extents: dict[int, int]) -> Array:
    """Return ``a`` cut, or filled up with zeros, at the end of some dimensions."""
    shape = tuple(extents.get(d, n) for d, n in enumerate(a.shape))
    if shape == a.shape:
        return a
    both = tuple(slice(min(x, y)) for x, y in zip(a.shape, shape, strict=True))
    out: Array = namespace(a).zeros(shape, a.dtype)
    out[both] = a[both]
    return out


def _forward(a: Array, n: tuple[int, ...], dims: tuple[int, ...], norm: str) -> Array:
    """Transform real ``a``: the last of ``dims`` first, to its half spectrum."""
    dtype = namespace(a).result_type(a.dtype, "F")  # some libraries compute in float64 only
    return namespace(a).fft.rfftn(a, n, dims, norm).astype(dtype, copy=False)


def _inverse(z: Array, n: tuple[int, ...], dims: tuple[int, ...], norm: str) -> Array:
    real = namespace(z).fft.irfftn(z, n, dims, norm)
    return real.astype(z.real.dtype, copy=False)


def _count_pairs(z: Array, n: int, dim: int, factor: float) -> Array:
    """Multiply the elements of a half spectrum along ``dim`` that stand for two by ``factor``."""
    scale = namespace(z).ones(z.shape[dim], z.real.dtype)
    scale[1 : (n + 1) // 2] = factor
    return z * scale.reshape([-1 if d == dim else 1 for d in range(z.ndim)])


@row(_signature, linear="joint")
def rfft(a: Array, *, n: tuple[int, ...], dim: tuple[int, ...], norm: str) -> tuple[Array, tuple[()]]:
    """Transform real ``a`` along ``dim`` after fitting its extents to ``n``; the last has n // 2 + 1 afterwards."""
    dims = _checked(a, n, dim, norm)
    if a.dtype.kind == "c":
        raise TypeError("expected real values")
    return _forward(_fit(wide(a), dict(zip(dims, n, strict=True))), n, dims, norm), ()


@rfft
def RFFT(into: Any, grads: Any, saved: Any, n: tuple[int, ...], dim: tuple[int, ...], norm: str) -> None:
    dims, shape = reduced(len(into[0].shape), dim), into[0].shape
    g = _inverse(_count_pairs(grads[0], n[-1], dims[-1], 0.5), n, dims, _ADJOINT[norm])
    into[0].give(_fit(g, {d: shape[d] for d in dims}))


@row(_signature, linear="joint")
def irfft(z: Array, *, n: tuple[int, ...], dim: tuple[int, ...], norm: str) -> tuple[Array, tuple[()]]:
    """Undo :func:`rfft`: the last of ``dim`` has half of a spectrum of ``n[-1]`` elements, cut or filled up to fit."""
    dims = _checked(z, n, dim, norm)
    if z.dtype.kind != "c":
        raise TypeError("expected complex values")
    return _inverse(_fit(z, dict(zip(dims, _halved(n), strict=True))), n, dims, norm), ()


@irfft
def IRFFT(into: Any, grads: Any, saved: Any, n: tuple[int, ...], dim: tuple[int, ...], norm: str) -> None:
    dims, shape = reduced(len(into[0].shape), dim), into[0].shape
    g = _count_pairs(_forward(grads[0], n, dims, _ADJOINT[norm]), n[-1], dims[-1], 2.0)
    into[0].give(_fit(g, {d: shape[d] for d in dims}))


def _halved(n: tuple[int, ...]) -> tuple[int, ...]:
    return (*n[:-1], n[-1] // 2 + 1)
