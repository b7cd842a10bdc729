"""Adam: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1; AMSGrad: Reddi et al. 2018, arXiv:1904.09237."""

from __future__ import annotations

from typing import Any, ClassVar

from hpcdist.autograd import Tensor
from hpcdist.kernels.optimizer import adam, amsgrad
from hpcdist.optim.clip import parts_of
from hpcdist.optim.optimizer import Optimizer, Parameters, real_flat, wide_zeros

__all__ = ["Adam"]


class Adam(Optimizer):
    """Steps along the mean of gradients, divided by the root of the mean of their squares.

    Every parameter counts its own steps: those in which it had a gradient.

    Parameters
    ----------
    params : see :data:`hpcdist.optim.optimizer.Parameters`
    lr : float
        Step size.
    betas : tuple of float
        Decay of the two means.
    eps : float
        Added to the root.
    weight_decay : float
        Added to the gradient, times the parameter.
    amsgrad : bool
        Divide by the root of the largest mean so far.
    maximize : bool
        Go uphill.
    """

    _decoupled: ClassVar[bool] = False
    _kept: ClassVar[frozenset[str] | None] = frozenset({"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"})

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize
        )

    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        flat = real_flat(type(self).__name__, parameter)
        if "step" not in state:
            state.update(step=0, exp_avg=wide_zeros(flat), exp_avg_sq=wide_zeros(flat))
        if group["amsgrad"] and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = wide_zeros(flat)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        decay = group["weight_decay"]
        kernel, more = (amsgrad, [state["max_exp_avg_sq"]]) if group["amsgrad"] else (adam, [])
        kernel(
            flat,
            parts_of(parameter),
            state["exp_avg"],
            state["exp_avg_sq"],
            *more,
            group["lr"],
            beta1,
            beta2,
            group["eps"],
            decay if self._decoupled else 0.0,
            0.0 if self._decoupled else decay,
            1 - beta1 ** state["step"],
            1 - beta2 ** state["step"],
            self._factor(group),
        )
