"""Learning rates that change with the step."""

from __future__ import annotations

import math
from collections.abc import Callable

from hpcdist.errors import explain
from hpcdist.optim.optimizer import Optimizer

__all__ = ["LambdaLR", "cosine_with_warmup"]


def cosine_with_warmup(warmup_steps: int, total_steps: int, final: float = 0.1) -> Callable[[int], float]:
    """Return the factor of the learning rate as a function of the steps taken.

    It rises linearly over ``warmup_steps`` and falls to ``final`` at ``total_steps`` along half a cosine (Loshchilov,
    Hutter 2017, arXiv:1608.03983, equation 5).
    """
    if not 0 <= warmup_steps <= total_steps:
        raise ValueError(explain("cosine_with_warmup: warmup_steps", got=warmup_steps, expected=f"0 to {total_steps}"))

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        progress = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))

    return factor


class LambdaLR:
    """Set the learning rate of each group to its initial one times a factor of the number of steps taken.

    Parameters
    ----------
    optimizer : Optimizer
        The rates it has now are the initial ones.
    lr_lambda : function ``(steps: int) -> float``
        The factor.
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        self.optimizer, self.lr_lambda, self.last_epoch = optimizer, lr_lambda, 0
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]
        self._set()

    def step(self) -> None:
        """Count one step, and set the rates of the next."""
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, int]:
        """Return the number of steps taken."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.last_epoch = int(state["last_epoch"])
        self._set()

    def _set(self) -> None:
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base * self.lr_lambda(self.last_epoch)
