"""Softmax and its logarithm over rows of (m, n) matrices, and their gradients."""

from __future__ import annotations

from hpcdist.array import Array, namespace
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel

__all__ = ["log_softmax", "log_softmax_grad", "softmax", "softmax_grad"]


@kernel("softmax")
def softmax(x: Array, y: Array) -> None:
    """Set ``y = exp(x) / sum(exp(x))`` in each row; ``y`` may be ``x``."""
    e = namespace(x).exp(_shifted(x))
    y[...] = e / e.sum(1, keepdims=True)


@kernel("softmax")
def softmax_grad(y: Array, g: Array, gx: Array) -> None:
    """Set ``gx = y * (g - sum(g * y))`` in each row; ``gx`` may be ``g``."""
    y, g = wide(y), wide(g)
    gx[...] = y * (g - (g * y).sum(1, keepdims=True))


@kernel("softmax")
def log_softmax(x: Array, y: Array) -> None:
    """Set ``y = x - log(sum(exp(x)))`` in each row; ``y`` may be ``x``."""
    xp, shifted = namespace(x), _shifted(x)
    y[...] = shifted - xp.log(xp.exp(shifted).sum(1, keepdims=True))


@kernel("softmax")
def log_softmax_grad(y: Array, g: Array, gx: Array) -> None:
    """Set ``gx = g - exp(y) * sum(g)`` in each row, ``y`` the logarithm; ``gx`` may be ``g``."""
    g = wide(g)
    gx[...] = g - namespace(y).exp(wide(y)) * g.sum(1, keepdims=True)


def _shifted(x: Array) -> Array:
    x = wide(x)
    shifted: Array = x - x.max(1, keepdims=True)
    return shifted
