"""LARS: You, Gitman, Ginsburg 2017, arXiv:1708.03888, algorithm 1."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from hpcdist.autograd import Tensor
from hpcdist.kernels.optimizer import sum_squares
from hpcdist.kernels.precision import wide
from hpcdist.optim.optimizer import Optimizer, Parameters, descend, real_flat

__all__ = ["LARS"]


class LARS(Optimizer):
    """Gradient descent whose rate for each parameter is in proportion to the parameter over its gradient.

    A parameter must be whole: its norm is that of all its elements.

    Parameters
    ----------
    params : see :data:`hpcdist.optim.optimizer.Parameters`
    lr : float
        Global rate.
    momentum : float
        The velocity becomes ``momentum * velocity + lr * local rate * gradient`` and is subtracted.
    weight_decay : float
        Added to the gradient, times the parameter.
    trust_coefficient : float
        The local rate is this times ``|w| / (|g| + weight_decay |w| + eps)``; 1 where a norm is 0.
    eps : float
        See there.
    maximize : bool
        Go uphill.
    """

    _needs_whole: ClassVar[bool] = True
    _kept: ClassVar[frozenset[str] | None] = frozenset({"momentum_buffer"})

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        eps: float = 1e-8,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
            eps=eps,
            maximize=maximize,
        )

    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        flat = real_flat("LARS", parameter)
        gradient = self._gradient(parameter, {**group, "weight_decay": 0.0})
        rate = group["lr"] * self._local_rate(flat, gradient, group)
        step = rate * (gradient + group["weight_decay"] * wide(flat))
        if group["momentum"]:
            if "momentum_buffer" in state:
                step += group["momentum"] * state["momentum_buffer"]
            state["momentum_buffer"] = step
        descend(flat, step)

    @staticmethod
    def _local_rate(flat: Any, gradient: Any, group: dict[str, Any]) -> float:
        weight, slope = math.sqrt(sum_squares(flat)), math.sqrt(sum_squares(gradient))
        if not (weight > 0 and slope > 0):
            return 1.0
        return float(group["trust_coefficient"] * weight / (slope + group["weight_decay"] * weight + group["eps"]))
