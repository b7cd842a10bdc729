"""Stochastic gradient descent, with momentum by the formulas of torch (Sutskever et al. 2013, up to a factor)."""

from __future__ import annotations

from typing import Any, ClassVar

from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.optim.optimizer import Optimizer, Parameters, descend, flat_values

__all__ = ["SGD"]


class SGD(Optimizer):
    """Gradient descent.

    Parameters
    ----------
    params : see :data:`hpcdist.optim.optimizer.Parameters`
    lr : float
        Step size.
    momentum, dampening : float
        The velocity becomes ``momentum * velocity + (1 - dampening) * gradient``; the first one is the gradient.
    weight_decay : float
        Added to the gradient, times the parameter.
    nesterov : bool
        Step along ``gradient + momentum * velocity``.
    maximize : bool
        Go uphill.
    """

    _kept: ClassVar[frozenset[str] | None] = frozenset({"momentum_buffer"})

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        if nesterov and (momentum == 0 or dampening != 0):
            raise ValueError(explain("SGD: nesterov", do="use a momentum above 0 and no dampening"))
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )

    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        flat, gradient = flat_values(parameter), self._gradient(parameter, group)
        if group["momentum"]:
            gradient = self._with_momentum(gradient, state, group)
        descend(flat, group["lr"] * gradient)

    @staticmethod
    def _with_momentum(gradient: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = gradient.copy()
        else:
            state["momentum_buffer"] *= group["momentum"]
            state["momentum_buffer"] += (1 - group["dampening"]) * gradient
        velocity = state["momentum_buffer"]
        return gradient + group["momentum"] * velocity if group["nesterov"] else velocity
