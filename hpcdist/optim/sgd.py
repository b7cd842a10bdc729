"""Stochastic gradient descent, with momentum by the formulas of torch (Sutskever et al. 2013, up to a factor)."""

from __future__ import annotations

from typing import Any, ClassVar

from hpcdist.array import Array
from hpcdist.errors import explain
from hpcdist.optim.elementwise import Elementwise
from hpcdist.optim.optimizer import Parameters, wide_zeros

__all__ = ["SGD"]


class SGD(Elementwise):
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

    def _prepare(self, flat: Array, state: dict[str, Any], group: dict[str, Any]) -> float:
        """Return what new gradients count for in the velocity; the first one counts in full."""
        first = "momentum_buffer" not in state
        if group["momentum"] and first:
            state["momentum_buffer"] = wide_zeros(flat)
        return 1.0 if first else 1 - group["dampening"]

    def _step_of(self, gradient: Array, kept: dict[str, Any], group: dict[str, Any], numbers: float) -> Array:
        step = gradient
        if group["momentum"]:
            velocity = kept["momentum_buffer"]
            velocity *= group["momentum"]
            velocity += numbers * gradient
            step = gradient + group["momentum"] * velocity if group["nesterov"] else velocity
        result: Array = group["lr"] * step
        return result
