"""Activations and their gradients, element by element; matrices are (m, n)."""

from __future__ import annotations

import math

from hpcdist.array import Array, namespace
from hpcdist.kernels.erf import erf
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel

__all__ = ["gelu", "gelu_grad", "silu", "silu_grad", "swiglu", "swiglu_grad"]

_SLOPE, _CUBIC = math.sqrt(2 / math.pi), 0.044715


@kernel("activation")
def gelu(z: Array, y: Array, tanh: bool) -> None:
    """Set ``y = z * P(N(0, 1) < z)`` (Hendrycks, Gimpel 2016), with their tanh approximation if ``tanh``."""
    z = wide(z)
    y[...] = z * _gate(z, tanh)


@kernel("activation")
def gelu_grad(z: Array, g: Array, gz: Array, tanh: bool) -> None:
    """Set ``gz = g * gelu'(z)``; ``gz`` may be ``g``."""
    z = wide(z)
    gate = _gate(z, tanh)
    if tanh:
        slope = gate * (1 - gate) * (2 * _SLOPE) * (1 + 3 * _CUBIC * z * z)
    else:
        slope = namespace(z).exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    gz[...] = wide(g) * (gate + z * slope)


def _gate(z: Array, tanh: bool) -> Array:
    if tanh:  # 0.5 * (1 + tanh(u)) is sigmoid(2 u)
        return _sigmoid(2 * _SLOPE * z * (1 + _CUBIC * z * z))
    return 0.5 * (1 + erf(z * math.sqrt(0.5)))


def _sigmoid(x: Array) -> Array:
    xp = namespace(x)
    e = xp.exp(-xp.abs(x))  # never overflows
    gate: Array = xp.where(x < 0, e, 1) / (1 + e)
    return gate


@kernel("activation")
def silu(z: Array, y: Array) -> None:
    """Set ``y = z * sigmoid(z)``."""
    z = wide(z)
    y[...] = z * _sigmoid(z)


@kernel("activation")
def silu_grad(z: Array, g: Array, gz: Array) -> None:
    """Set ``gz = g * silu'(z)``; ``gz`` may be ``g``."""
    gz[...] = wide(g) * _silu_slope(wide(z))


def _silu_slope(z: Array) -> Array:
    gate = _sigmoid(z)
    slope: Array = gate * (1 + z * (1 - gate))
    return slope


@kernel("activation")
def swiglu(z: Array, y: Array) -> None:
    """Set ``y = silu(gate) * up`` (Shazeer 2020, eq. 6) for ``z = [gate | up]``, (m, 2 n)."""
    gate, up = _halves(z)
    y[...] = gate * _sigmoid(gate) * up


@kernel("activation")
def swiglu_grad(z: Array, g: Array, gz: Array) -> None:
    """Set ``gz`` (m, 2 n) to the gradient of ``z`` for the gradient ``g`` (m, n); ``gz`` may be ``z``."""
    gate, up = _halves(z)
    g, n = wide(g), g.shape[1]
    toward_gate, toward_up = g * up * _silu_slope(gate), g * gate * _sigmoid(gate)
    gz[:, :n], gz[:, n:] = toward_gate, toward_up


def _halves(z: Array) -> tuple[Array, Array]:
    n = z.shape[1] // 2
    return wide(z[:, :n]), wide(z[:, n:])
