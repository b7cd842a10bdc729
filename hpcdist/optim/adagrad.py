"""Adagrad: Duchi, Hazan, Singer 2011, JMLR 12, figure 1 (diagonal form)."""

from __future__ import annotations

from typing import Any, ClassVar

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.optim.elementwise import Elementwise
from hpcdist.optim.optimizer import Parameters, real_flat, wide_zeros

__all__ = ["Adagrad"]


class Adagrad(Elementwise):
    """Steps along the gradient, divided by the root of the sum of all its squares so far.

    Parameters
    ----------
    params : see :data:`hpcdist.optim.optimizer.Parameters`
    lr, lr_decay : float
        The step size of step t, counted from 0, is ``lr / (1 + t * lr_decay)``.
    weight_decay : float
        Added to the gradient, times the parameter.
    initial_accumulator_value : float
        What the sums of squares begin with.
    eps : float
        Added to the root.
    maximize : bool
        Go uphill.
    """

    _kept: ClassVar[frozenset[str] | None] = frozenset({"step", "sum"})

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            maximize=maximize,
        )

    def _flat(self, parameter: Tensor) -> Array:
        return real_flat("Adagrad", parameter)

    def _prepare(self, flat: Array, state: dict[str, Any], group: dict[str, Any]) -> float:
        """Return the step size."""
        if "sum" not in state:
            state.update(step=0, sum=wide_zeros(flat) + group["initial_accumulator_value"])
        state["step"] += 1
        lr: float = group["lr"] / (1 + (state["step"] - 1) * group["lr_decay"])
        return lr

    def _step_of(self, gradient: Array, kept: dict[str, Any], group: dict[str, Any], numbers: float) -> Array:
        total = kept["sum"]
        total += gradient * gradient
        step: Array = numbers * gradient / (namespace(total).sqrt(total) + group["eps"])
        return step
