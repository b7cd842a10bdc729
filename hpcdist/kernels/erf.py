"""The error function in plain array calls (NumPy has none), to float64's precision."""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.kernels.precision import wide

__all__ = ["erf"]

# Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969), 631-637.
_SMALL = (
    (
        1.85777706184603153e-1,
        3.16112374387056560e0,
        1.13864154151050156e2,
        3.77485237685302021e2,
        3.20937758913846947e3,
    ),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_LARGE = (
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594e0,
        6.61191906371416295e1,
        2.98635138197400131e2,
        8.81952221241769090e2,
        1.71204761263407058e3,
        2.05107837782607147e3,
        1.23033935479799725e3,
    ),
    (
        1.0,
        1.57449261107098347e1,
        1.17693950891312499e2,
        5.37181101862009858e2,
        1.62138957456669019e3,
        3.29079923573345963e3,
        4.36261909014324716e3,
        3.43936767414372164e3,
        1.23033935480374942e3,
    ),
)
_JOIN, _END = 0.5, 6.0  # between the two forms; where erf is 1 to float64's precision (5.93)


def erf(x: Array) -> Array:
    """Return the error function of real ``x``, computed in float32 at least."""
    xp, dtype, x = namespace(x), x.dtype, wide(x)
    size = xp.minimum(xp.abs(x), _END)
    near = x * _ratio(xp.minimum(size, _JOIN) ** 2, *_SMALL)
    # Cody's middle form is good to 4; from there to 6 its error is below erf's distance to 1
    far = xp.copysign(1 - xp.exp(-(size**2)) * _ratio(size, *_LARGE), x)
    result: Array = xp.where(size <= _JOIN, near, far)
    return result.astype(dtype) if x.dtype != dtype else result


def _ratio(x: Array, top: tuple[float, ...], bottom: tuple[float, ...]) -> Any:
    return _polynomial(x, top) / _polynomial(x, bottom)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Any:
    total: Any = coefficients[0]
    for c in coefficients[1:]:
        total = total * x + c
    return total
