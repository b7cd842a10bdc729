"""Complex numbers and their parts. A gradient of a complex z is dL/d(Re z) + i dL/d(Im z), as torch's."""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS, broadcast_signature, give, unary_signature
from hpcdist.autograd.ops.norm import contiguous

__all__ = ["COMPLEX", "CONJ", "IMAG", "REAL", "VIEW_AS_COMPLEX", "VIEW_AS_REAL"]


def _check_complex(z: Array) -> None:
    if z.dtype.kind != "c":
        raise TypeError("expected complex values")


def _check_parts(*parts: Array) -> None:
    for a in parts:
        if a.dtype.char not in "fd":
            raise TypeError(f"expected float32 or float64, of which there are complex numbers, not {a.dtype}")


def _joined(re: Array, im: Array) -> Array:
    xp = namespace(re, im)
    out: Array = xp.empty(xp.broadcast_shapes(re.shape, im.shape), xp.result_type(re, im, "F"))
    out.real, out.imag = re, im
    return out


def _pairs(z: Array) -> Array:
    return contiguous(z)[..., None].view(z.real.dtype)


def _from_pairs(a: Array) -> Array:
    return contiguous(a).view(namespace(a).result_type(a, "F"))[..., 0]


@row(broadcast_signature, linear="joint")
def _complex(re: Array, im: Array) -> tuple[Array, tuple[()]]:
    """Return ``re + i im``."""
    _check_parts(re, im)
    return _joined(re, im), ()


@_complex
def COMPLEX(into: Any, grads: Any, saved: Any) -> None:
    give(into[0], lambda: grads[0].real)
    give(into[1], lambda: grads[0].imag)


@row(unary_signature, linear="joint")
def real(z: Array) -> tuple[Array, tuple[()]]:
    """Return the real parts."""
    _check_complex(z)
    return z.real, ()


@real
def REAL(into: Any, grads: Any, saved: Any) -> None:
    into[0].give(grads[0].astype(into[0].dtype))


@row(unary_signature, linear="joint")
def imag(z: Array) -> tuple[Array, tuple[()]]:
    """Return the imaginary parts."""
    _check_complex(z)
    return z.imag, ()


@imag
def IMAG(into: Any, grads: Any, saved: Any) -> None:
    into[0].give(grads[0] * into[0].dtype.type(1j))


@row(unary_signature, linear="joint")
def conj(z: Array) -> tuple[Array, tuple[()]]:
    """Return the complex conjugates."""
    return z.conj(), ()


@conj
def CONJ(into: Any, grads: Any, saved: Any) -> None:
    into[0].give(grads[0].conj())


def _to_pairs_signature(shapes: list[tuple[int, ...]]) -> str:
    names = LETTERS[: len(shapes[0])]
    return f"{names}->{names}[z]"


@row(_to_pairs_signature, linear="joint")
def view_as_real(z: Array) -> tuple[Array, tuple[()]]:
    """Return [real, imaginary] of each element in a new last dimension."""
    _check_complex(z)
    return _pairs(z), ()


@view_as_real
def VIEW_AS_REAL(into: Any, grads: Any, saved: Any) -> None:
    into[0].give(_from_pairs(grads[0]))


def _from_pairs_signature(shapes: list[tuple[int, ...]]) -> str:
    names = LETTERS[: len(shapes[0]) - 1]
    return f"{names}[z]->{names}"


@row(_from_pairs_signature, linear="joint")
def view_as_complex(a: Array) -> tuple[Array, tuple[()]]:
    """Undo :func:`view_as_real`."""
    _check_parts(a)
    if a.ndim < 1 or a.shape[-1] != 2:
        raise ValueError("expected [real, imaginary] in the last dimension")
    return _from_pairs(a), ()


@view_as_complex
def VIEW_AS_COMPLEX(into: Any, grads: Any, saved: Any) -> None:
    into[0].give(_pairs(grads[0]))
