"""Losses under the names of torch.nn.functional. Targets and weights that are no tensors take the input's dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.autograd import Tensor, apply, ops
from hpcdist.autograd.operand import wrapped
from hpcdist.errors import explain

__all__ = [
    "IGNORE_INDEX",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "linear_cross_entropy",
    "mse_loss",
    "smooth_l1_loss",
]

IGNORE_INDEX = -100
CHUNK_ROWS = 512
"""Rows of logits that exist at a time: as large as keeps the products efficient."""


# ---------------------------------------------------------------- of pairs
def mse_loss(input: Tensor, target: Any, reduction: str = "mean") -> Tensor:
    """Return the mean of squared differences."""
    d = _difference("mse_loss", input, target)
    return _reduced("mse_loss", d * d, reduction)


def l1_loss(input: Tensor, target: Any, reduction: str = "mean") -> Tensor:
    """Return the mean of absolute differences."""
    return _reduced("l1_loss", apply(ops.ABS, _difference("l1_loss", input, target)), reduction)


def huber_loss(input: Tensor, target: Any, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return the mean of half the squared differences up to ``delta``, on a straight line from there."""
    if not delta > 0:
        raise ValueError(explain("huber_loss: delta", got=delta, expected="above 0"))
    losses = apply(ops.HUBER, input, _like("huber_loss", input, target), delta=float(delta))
    return _reduced("huber_loss", losses, reduction)


def smooth_l1_loss(input: Tensor, target: Any, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Return the Huber loss divided by its ``beta``; with beta 0 the mean of absolute differences."""
    if beta == 0:
        return l1_loss(input, target, reduction)
    if not beta > 0:
        raise ValueError(explain("smooth_l1_loss: beta", got=beta, expected="0 or above"))
    return huber_loss(input, target, reduction, beta) * (1 / beta)


def binary_cross_entropy(input: Tensor, target: Any, weight: Any | None = None, reduction: str = "mean") -> Tensor:
    """Return the mean of ``-(t log p + (1 - t) log(1 - p))`` for probabilities p; logarithms are at least -100.

    ``weight`` multiplies the losses.
    """
    losses = apply(ops.BINARY_CROSS_ENTROPY, input, _like("binary_cross_entropy", input, target))
    return _reduced("binary_cross_entropy", _weighted(losses, weight), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Any,
    weight: Any | None = None,
    reduction: str = "mean",
    pos_weight: Any | None = None,
) -> Tensor:
    """Return the mean of the binary cross-entropy of sigmoid(input), for inputs of any size.

    ``weight`` multiplies the losses, ``pos_weight`` the part of them that is for targets of 1; both are broadcast.
    """
    pair = input, _like("binary_cross_entropy_with_logits", input, target)
    more = () if pos_weight is None else (_cast(pos_weight, input.dtype),)
    losses = apply(ops.LOGISTIC, *pair, *more)
    return _reduced("binary_cross_entropy_with_logits", _weighted(losses, weight), reduction)


def kl_div(input: Tensor, target: Any, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Return the mean of ``t * (log t - input)``, for logarithms of probabilities ``input``.

    Parameters
    ----------
    reduction : str
        ``"batchmean"`` divides the sum by the first extent, as the definition of the divergence does.
    log_target : bool
        Whether targets are logarithms too.
    """
    losses = apply(ops.KL_DIV, input, _like("kl_div", input, target), log_target=log_target)
    if reduction == "batchmean":
        return losses.sum() * (1 / max(losses.shape[0], 1))
    return _reduced("kl_div", losses, reduction)


# ---------------------------------------------------------------- of classes
def cross_entropy(
    logits: Tensor,
    targets: Any,
    weight: Any | None = None,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return -log softmax(logits)[target] in nats, averaged or added up over the targets that are not ``ignore_index``.

    The mean over no targets is 0.

    Parameters
    ----------
    logits : Tensor, shape (..., classes)
        Classes come last, unlike in torch.
    targets : integer array or Tensor, shape (...)
    weight : array or Tensor, shape (classes,), optional
        Weights of classes: the mean is divided by the sum of those of the targets. It gets no gradient.
    reduction : str
        ``"mean"``, ``"sum"`` or ``"none"``.
    label_smoothing : float
        Part of each target that is spread evenly over all classes.
    """
    if weight is None and not label_smoothing and reduction != "none":
        return apply(ops.CROSS_ENTROPY, logits, wrapped(targets), ignore_index=ignore_index, reduction=reduction)
    weights = () if weight is None else (wrapped(weight).detach().to(logits.dtype),)
    return apply(
        ops.CLASS_CROSS_ENTROPY,
        logits,
        wrapped(targets),
        *weights,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=float(label_smoothing),
    )


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Any,
    ignore_index: int = IGNORE_INDEX,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return ``cross_entropy(x @ weight.T, targets)`` without the logits: x (..., k), weight (classes, k).

    With ``label_smoothing``, or ``reduction="none"``, there are logits.
    """
    if label_smoothing or reduction == "none":
        logits = apply(ops.LINEAR, x, weight)
        return cross_entropy(logits, targets, None, ignore_index, reduction, label_smoothing)
    return apply(
        ops.LINEAR_CROSS_ENTROPY,
        x,
        weight,
        wrapped(targets),
        ignore_index=ignore_index,
        reduction=reduction,
        chunk_rows=CHUNK_ROWS,
    )


# ---------------------------------------------------------------- what they share
def _cast(values: Any, dtype: np.dtype[Any]) -> Any:
    """Return a tensor; integers, and what is not a tensor yet, in ``dtype``."""
    tensor = wrapped(values)
    keeps = tensor is values and tensor.dtype.kind not in "biu"
    return tensor if keeps or not np.can_cast(tensor.dtype, dtype, "same_kind") else tensor.to(dtype)


def _like(name: str, input: Tensor, target: Any) -> Any:
    """Return the target as a tensor; of another shape it would be broadcast, which is rarely meant."""
    target = _cast(target, input.dtype)
    if target.shape != input.shape:
        raise ValueError(
            explain(f"{name}: target", got=target.shape, expected=f"the shape of the input, {input.shape}")
        )
    return target


def _difference(name: str, input: Tensor, target: Any) -> Tensor:
    return input - _like(name, input, target)


def _weighted(losses: Tensor, weight: Any | None) -> Tensor:
    return losses if weight is None else losses * _cast(weight, losses.dtype)


def _reduced(name: str, losses: Tensor, reduction: str) -> Tensor:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(explain(f"{name}: reduction", got=repr(reduction), expected="'none', 'mean' or 'sum'"))
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()
