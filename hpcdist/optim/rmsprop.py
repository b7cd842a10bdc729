"""RMSprop: Hinton 2012, lecture 6e; the centred form: Graves 2013, arXiv:1308.0850, equations 38 to 45."""

from __future__ import annotations

from typing import Any, ClassVar

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.optim.elementwise import Elementwise
from hpcdist.optim.optimizer import Parameters, real_flat, wide_zeros

__all__ = ["RMSprop"]


class RMSprop(Elementwise):
    """Steps along the gradient, divided by the root of the mean of its squares.

    Parameters
    ----------
    params : see :data:`hpcdist.optim.optimizer.Parameters`
    lr, alpha, eps : float
        Step size; decay of the mean; added to the root.
    weight_decay : float
        Added to the gradient, times the parameter.
    momentum : float
        Decay of the sum of steps that is taken in place of one.
    centered : bool
        Subtract the square of the mean gradient from the mean square.
    maximize : bool
        Go uphill.
    """

    _kept: ClassVar[frozenset[str] | None] = frozenset({"step", "square_avg", "grad_avg", "momentum_buffer"})

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            maximize=maximize,
        )

    def _flat(self, parameter: Tensor) -> Array:
        return real_flat("RMSprop", parameter)

    def _prepare(self, flat: Array, state: dict[str, Any], group: dict[str, Any]) -> None:
        kept = ["square_avg", *(["grad_avg"] if group["centered"] else [])]
        kept += ["momentum_buffer"] if group["momentum"] else []
        for key in kept:
            if key not in state:
                state[key] = wide_zeros(flat)
        state["step"] = state.get("step", 0) + 1

    def _step_of(self, gradient: Array, kept: dict[str, Any], group: dict[str, Any], numbers: None) -> Array:  # noqa: ARG002
        step = gradient / self._spread(gradient, kept, group)
        if group["momentum"]:
            velocity = kept["momentum_buffer"]
            velocity *= group["momentum"]
            velocity += step
            step = velocity
        result: Array = group["lr"] * step
        return result

    @staticmethod
    def _spread(gradient: Array, kept: dict[str, Any], group: dict[str, Any]) -> Array:
        alpha, square = group["alpha"], kept["square_avg"]
        square *= alpha
        square += (1 - alpha) * gradient * gradient
        if group["centered"]:
            mean = kept["grad_avg"]
            mean += (1 - alpha) * (gradient - mean)
            square = namespace(square).maximum(square - mean * mean, 0)  # rounding may make it negative
        spread: Array = namespace(square).sqrt(square) + group["eps"]
        return spread
