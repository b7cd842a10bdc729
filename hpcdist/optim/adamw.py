"""AdamW: Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2 (without the schedule factor)."""

from __future__ import annotations

from typing import ClassVar

from hpcdist.optim.adam import Adam
from hpcdist.optim.optimizer import Parameters

__all__ = ["AdamW"]


class AdamW(Adam):
    """Adam with decoupled weight decay: parameters shrink by ``lr * weight_decay`` a step.

    The other options are those of :class:`Adam`.
    """

    _decoupled: ClassVar[bool] = True

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
