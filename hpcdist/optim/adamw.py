"""AdamW: Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2 (without the schedule factor)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.kernels.optimizer import adamw
from hpcdist.optim.optimizer import Optimizer, Parameters, parts_of

__all__ = ["AdamW"]


class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    Parameters
    ----------
    params : see :data:`hpcdist.optim.optimizer.Parameters`
    lr : float
        Step size.
    betas : tuple of float
        Decay of the two moments.
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        Parameters shrink by ``lr * weight_decay`` a step.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= b < 1 for b in betas):
            raise ValueError(
                explain(
                    "AdamW: options",
                    got=f"lr {lr}, betas {betas}, eps {eps}, weight_decay {weight_decay}",
                    expected="lr, eps and weight_decay >= 0, betas in [0, 1)",
                )
            )
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        flat = parameter.data.reshape(-1)
        if flat.dtype.kind == "c":
            raise TypeError(explain("AdamW: parameter", got=flat.dtype, expected="a real dtype"))
        if not state:
            state.update(step=0, exp_avg=np.zeros_like(flat), exp_avg_sq=np.zeros_like(flat))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        adamw(
            flat,
            parts_of(parameter),
            state["exp_avg"],
            state["exp_avg_sq"],
            group["lr"],
            beta1,
            beta2,
            group["eps"],
            group["weight_decay"],
            1 - beta1 ** state["step"],
            1 - beta2 ** state["step"],
            1.0,
        )
