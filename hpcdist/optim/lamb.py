"""LAMB: You et al. 2020, arXiv:1904.00962, algorithm 2."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.kernels.optimizer import sum_squares
from hpcdist.kernels.precision import wide
from hpcdist.optim.optimizer import Optimizer, Parameters, descend, real_flat, wide_zeros

__all__ = ["LAMB"]


class LAMB(Optimizer):
    """Adam whose step of each parameter is made as long as ``lr`` times the parameter, for very large batches.

    A parameter must be whole: its norm is that of all its elements.

    Parameters
    ----------
    params : see :data:`hpcdist.optim.optimizer.Parameters`
    lr, betas, eps : float, tuple of float, float
        As in :class:`hpcdist.optim.Adam`.
    weight_decay : float
        Added to the direction, times the parameter, before its length is set.
    maximize : bool
        Go uphill.
    """

    _needs_whole: ClassVar[bool] = True
    _kept: ClassVar[frozenset[str] | None] = frozenset({"step", "exp_avg", "exp_avg_sq"})

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize)

    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        flat = real_flat("LAMB", parameter)
        if "step" not in state:
            state.update(step=0, exp_avg=wide_zeros(flat), exp_avg_sq=wide_zeros(flat))
        state["step"] += 1
        direction = self._direction(self._gradient(parameter, {**group, "weight_decay": 0.0}), state, group)
        direction = direction + group["weight_decay"] * wide(flat)
        descend(flat, group["lr"] * _ratio(flat, direction) * direction)

    @staticmethod
    def _direction(gradient: Array, state: dict[str, Any], group: dict[str, Any]) -> Array:
        (beta1, beta2), mean, square = group["betas"], state["exp_avg"], state["exp_avg_sq"]
        mean *= beta1
        mean += (1 - beta1) * gradient
        square *= beta2
        square += (1 - beta2) * gradient * gradient
        spread = namespace(square).sqrt(square / (1 - beta2 ** state["step"])) + group["eps"]
        direction: Array = mean / (1 - beta1 ** state["step"]) / spread
        return direction


def _ratio(flat: Array, direction: Array) -> float:
    """Return the length of the parameter over that of the direction, 1 where one of them is 0."""
    parameter, step = math.sqrt(sum_squares(flat)), math.sqrt(sum_squares(direction))
    return parameter / step if parameter > 0 and step > 0 else 1.0
