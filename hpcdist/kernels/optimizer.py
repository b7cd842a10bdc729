"""The update of Adam and its kin, and the sum of squares behind a gradient's norm."""

from __future__ import annotations

from hpcdist.array import Array, namespace
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel

__all__ = ["BLOCK", "LANES", "adam", "amsgrad", "block_squares", "sum_squares", "tree_sum"]

BLOCK, LANES = 1024, 16


@kernel("optimizer")
def adam(
    p: Array,
    parts: Array,
    m: Array,
    v: Array,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    shrink: float,
    l2: float,
    correction1: float,
    correction2: float,
    grad_scale: float,
) -> None:
    """Update ``p`` and its moments in place (Kingma, Ba 2015, algorithm 1; Loshchilov, Hutter 2019, algorithm 2).

    Parameters
    ----------
    p, m, v : array
        (n,): parameters, first and second moments.
    parts : array
        (k, n): the gradient is ``grad_scale`` times the sum of the rows, added in their order, plus ``l2 * p``.
    shrink : float
        Decoupled decay: ``p`` shrinks by ``lr * shrink`` first.
    correction1, correction2 : float
        ``1 - beta1 ** step`` and ``1 - beta2 ** step``.
    """
    _moments(p, parts, m, v, beta1, beta2, l2, grad_scale)
    _move(p, m, v, lr, eps, shrink, correction1, correction2)


@kernel("optimizer")
def amsgrad(
    p: Array,
    parts: Array,
    m: Array,
    v: Array,
    largest: Array,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    shrink: float,
    l2: float,
    correction1: float,
    correction2: float,
    grad_scale: float,
) -> None:
    """Update as :func:`adam`, divided by the root of the ``largest`` (n,) second moment so far (Reddi et al. 2018)."""
    _moments(p, parts, m, v, beta1, beta2, l2, grad_scale)
    namespace(p).maximum(largest, v, out=largest)
    _move(p, m, largest, lr, eps, shrink, correction1, correction2)


def _moments(
    p: Array, parts: Array, m: Array, v: Array, beta1: float, beta2: float, l2: float, grad_scale: float
) -> None:
    g = wide(parts[0])
    for part in parts[1:]:
        g = g + wide(part)
    g = g * grad_scale
    if l2:
        g = g + l2 * wide(p)
    m[...] = beta1 * wide(m) + (1 - beta1) * g
    v[...] = beta2 * wide(v) + (1 - beta2) * g * g


def _move(
    p: Array, m: Array, v: Array, lr: float, eps: float, shrink: float, correction1: float, correction2: float
) -> None:
    spread = namespace(p).sqrt(wide(v) / correction2) + eps
    p[...] = wide(p) * (1 - lr * shrink) - (lr / correction1) * wide(m) / spread


@kernel("optimizer")
def sum_squares(x: Array) -> float:
    """Return the sum of squares of ``x`` (n,), by blocks and a tree: its bits depend on nothing but the values."""
    return tree_sum(block_squares.reference(x)) if x.size else 0.0


@kernel("optimizer")
def block_squares(x: Array) -> Array:
    """Return the sums of squares of blocks of 1024 elements of ``x`` (n,), counted from 0; the last may be short.

    Squares are float64. A block is summed in 16 lanes (element ``i`` in lane ``i % 16``, in order), lanes by a tree.
    """
    xp = namespace(x)
    padded = xp.zeros(-(-x.size // BLOCK) * BLOCK)
    padded[: x.size] = x
    padded *= padded
    lanes = padded.reshape(-1, BLOCK // LANES, LANES)
    total = lanes[:, 0]
    for step in range(1, BLOCK // LANES):
        total = total + lanes[:, step]
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]


def tree_sum(x: Array) -> float:
    """Return the sum of ``x`` (n,), n > 0, by the tree that adds neighbours; one without any moves up."""
    while x.size > 1:
        even = x.size // 2 * 2
        x = namespace(x).concatenate([x[0:even:2] + x[1:even:2], x[even:]])
    return float(x[0])
