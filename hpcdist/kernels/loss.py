"""Cross-entropy of rows of logits with integer targets, and its gradient in place."""

from __future__ import annotations

from hpcdist.array import Array, namespace
from hpcdist.kernels.indices import check_indices
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel

__all__ = ["cross_entropy", "cross_entropy_grad"]


@kernel("loss")
def cross_entropy(logits: Array, targets: Array, ignore_index: int) -> float:
    """Return the sum of ``-log softmax(logits)[target]`` over rows whose target is not ``ignore_index``.

    Parameters
    ----------
    logits, targets : array
        (m, n), and (m,) of integers in ``[0, n)`` or ``ignore_index``.

    Raises
    ------
    ValueError
        If a target is out of range.
    """
    return _exponentials(logits, targets, ignore_index)[0]


@kernel("loss")
def cross_entropy_grad(logits: Array, targets: Array, ignore_index: int, scale: float) -> float:
    """Replace ``logits`` by ``(softmax - onehot(target)) * scale``, ignored rows by 0; return the loss.

    Raises
    ------
    ValueError
        If a target is out of range.
    """
    loss, e, counted = _exponentials(logits, targets, ignore_index)
    gradient = e / e.sum(1, keepdims=True)
    rows = namespace(logits).arange(len(targets))[counted]
    gradient[rows, targets[counted]] -= 1
    logits[...] = gradient * scale
    logits[~counted] = 0
    return loss


def _exponentials(logits: Array, targets: Array, ignore_index: int) -> tuple[float, Array, Array]:
    """Return the loss, exp(logits - largest of the row), and which rows count."""
    check_indices("cross_entropy: targets", targets, logits.shape[1], ignore_index)
    xp, counted = namespace(logits), targets != ignore_index
    shifted = wide(logits) - wide(logits).max(1, keepdims=True)
    e = xp.exp(shifted)
    rows = xp.arange(len(targets))[counted]
    chosen = shifted[rows, targets[counted]].astype(float)
    return float((xp.log(e[counted].sum(1).astype(float)) - chosen).sum()), e, counted
