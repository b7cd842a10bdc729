"""Losses as modules, under torch's names: what they compute is in ``functional``."""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array
from hpcdist.autograd import Tensor
from hpcdist.nn import functional_loss as F
from hpcdist.nn.module import Module

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "SmoothL1Loss",
]


class MSELoss(Module):
    """Squared differences: see ``functional.mse_loss``."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.mse_loss(input, target, self.reduction)


class L1Loss(Module):
    """Absolute differences: see ``functional.l1_loss``."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.l1_loss(input, target, self.reduction)


class HuberLoss(Module):
    """Squared differences that go on as straight lines: see ``functional.huber_loss``."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__()
        self.reduction, self.delta = reduction, delta

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.huber_loss(input, target, self.reduction, self.delta)


class SmoothL1Loss(Module):
    """Absolute differences with a smooth minimum: see ``functional.smooth_l1_loss``."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__()
        self.reduction, self.beta = reduction, beta

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


class KLDivLoss(Module):
    """Kullback-Leibler divergence: see ``functional.kl_div``."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__()
        self.reduction, self.log_target = reduction, log_target

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.kl_div(input, target, self.reduction, self.log_target)


class _Weighted(Module):
    """A loss with weights, which are saved with it."""

    def __init__(self, **weights: Array | None) -> None:
        super().__init__()
        for name, values in weights.items():
            if values is None:
                setattr(self, name, None)
            else:
                self.register_buffer(name, values)


class BCELoss(_Weighted):
    """Binary cross-entropy of probabilities: see ``functional.binary_cross_entropy``."""

    def __init__(self, weight: Array | None = None, reduction: str = "mean") -> None:
        super().__init__(weight=weight)
        self.reduction = reduction

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.binary_cross_entropy(input, target, self.weight, self.reduction)


class BCEWithLogitsLoss(_Weighted):
    """Binary cross-entropy of logits: see ``functional.binary_cross_entropy_with_logits``."""

    def __init__(self, weight: Array | None = None, reduction: str = "mean", pos_weight: Array | None = None) -> None:
        super().__init__(weight=weight, pos_weight=pos_weight)
        self.reduction = reduction

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)


class CrossEntropyLoss(_Weighted):
    """Cross-entropy in nats of logits (..., classes) and integer targets (...): see ``functional.cross_entropy``."""

    def __init__(
        self,
        weight: Array | None = None,
        ignore_index: int = F.IGNORE_INDEX,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight=weight)
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, logits: Tensor, targets: Any) -> Tensor:
        return F.cross_entropy(logits, targets, self.weight, self.ignore_index, self.reduction, self.label_smoothing)
