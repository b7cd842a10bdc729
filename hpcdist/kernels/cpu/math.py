"""Functions of lanes, in float32; their coefficients are minimax fits made for this file."""

from __future__ import annotations

import numpy as np

from hpcdist.kernels.cpu.compiled import inline, single
from hpcdist.kernels.cpu.vector import add_to_exponent, choose_above, copysign, fma

__all__ = ["ONE", "ZERO", "erf", "exp", "sigmoid"]

ZERO, ONE, FOUR, INF = single(0), single(1), single(4), single(np.inf)
_LOG2_E = single(1.44269504)
_LN2_HIGH, _LN2_LOW = single(0.693359375), single(-2.12194440e-4)  # their sum is log(2); high has 10 bits
_MAGIC = single(1.5 * 2**23)  # added, it leaves the nearest integer in the low bits
_HIGHEST, _LOWEST = single(88.722839), single(-87.336544)  # log of the largest float32, the smallest normal
_E0, _E1, _E2 = single(1.3814467e-3), single(8.3687806e-3), single(4.16683942e-2)
_E3, _E4 = single(1.666652011e-1), single(4.999999341e-1)
_N0, _N1, _N2 = single(7.853798532e-5), single(-8.010175669e-4), single(5.188325749e-3)
_N3, _N4, _N5 = single(-2.685381096e-2), single(1.128358513e-1), single(-3.761262582e-1)
_N6 = single(1.283791657e-1)
_F0, _F1, _F2 = single(1.157237e-3), single(-1.4831978e-2), single(8.8800144e-2)
_F3, _F4, _F5 = single(6.54239402e-1), single(1.117621766), single(2.619025e-3)


@inline
def exp(x):
    # 2**k * exp(r) with |r| <= log(2) / 2, and exp(r) = 1 + r + r*r * polynomial(r) to 3e-9
    shifted = fma(x, _LOG2_E, _MAGIC)
    k = shifted - _MAGIC
    r = fma(k, -_LN2_LOW, fma(k, -_LN2_HIGH, x))
    p = fma(fma(fma(fma(_E0, r, _E1), r, _E2), r, _E3), r, _E4)
    y = add_to_exponent(fma(p, r * r, r) + ONE, shifted)
    # below the smallest normal number it is 0: denormal results are slow on some CPUs
    return choose_above(x, _HIGHEST, x + INF, choose_above(x, _LOWEST, y, ZERO))


@inline
def sigmoid(x):
    return ONE / (exp(ZERO - x) + ONE)


@inline
def erf(x):
    size = copysign(x, ONE)
    s = x * x
    near = fma(fma(fma(fma(fma(fma(_N0, s, _N1), s, _N2), s, _N3), s, _N4), s, _N5), s, _N6)
    near = fma(near, x, x)
    # from 1 on, erf(t) = 1 - exp(-polynomial(t)) to 2e-8; from 4 on it is 1
    t = choose_above(FOUR, size, size, FOUR)
    far = fma(fma(fma(fma(fma(_F0, t, _F1), t, _F2), t, _F3), t, _F4), t, _F5)
    far = copysign(ONE - exp(ZERO - far), x)
    return choose_above(size, ONE, far, near)
