"""Learning rates that are a function of the steps taken, so that their number is all the state there is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdist.errors import explain
from hpcdist.optim.optimizer import Optimizer

__all__ = ["Curve", "LRScheduler", "LambdaLR", "cosine_with_warmup"]


class LRScheduler(ABC):
    """Base of the schedules.

    Parameters
    ----------
    optimizer : Optimizer
        Its groups' rates when its first schedule is made are the initial ones, ``group["initial_lr"]``; every schedule
        starts from those.
    last_epoch : int
        Steps taken before, less one; -1: none.

    Attributes
    ----------
    last_epoch : int
        Steps taken.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer, self.last_epoch = optimizer, last_epoch + 1
        self.apply(self.last_epoch)
        self._set = self.get_last_lr()

    @abstractmethod
    def rates(self, epoch: int) -> list[float]:
        """Return the rate of each group after ``epoch`` steps."""

    @property
    def base_lrs(self) -> list[float]:
        """The initial rate of each group."""
        return [group.setdefault("initial_lr", group["lr"]) for group in self.optimizer.param_groups]

    def apply(self, epoch: int) -> None:
        """Set the rates to those after ``epoch`` steps."""
        rates, groups = self.rates(epoch), self.optimizer.param_groups
        if len(rates) != len(groups):
            do = "make the schedule after the last add_param_group, or by one number for all groups"
            raise ValueError(explain(f"{type(self).__name__}: rates", got=len(rates), expected=len(groups), do=do))
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def step(self) -> None:
        """Count one step, and set the rates of the next.

        Raises
        ------
        RuntimeError
            If something else changed the rates since they were set here: that would be lost.
        """
        if any(now != mine for now, mine in zip(self.get_last_lr(), self._set, strict=False)):  # groups may be new
            do = "several schedules: ChainedScheduler or SequentialLR; another rate: set initial_lr of the group"
            what = f"{type(self).__name__}.step: something else changed the learning rates, which would be lost"
            raise RuntimeError(explain(what, got=self.get_last_lr(), expected=self._set, do=do))
        self.last_epoch += 1
        self.apply(self.last_epoch)
        self._set = self.get_last_lr()

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps taken."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned, with the initial rates of the optimizer."""
        self.last_epoch = int(state["last_epoch"])
        self.apply(self.last_epoch)
        self._set = self.get_last_lr()


class Curve(LRScheduler):
    """A schedule that is the same formula for every group."""

    @abstractmethod
    def rate(self, base: float, epoch: int) -> float:
        """Return the rate after ``epoch`` steps of a group whose initial one is ``base``."""

    def rates(self, epoch: int) -> list[float]:
        return [self.rate(base, epoch) for base in self.base_lrs]


class LambdaLR(LRScheduler):
    """Set the learning rate of each group to its initial one times a factor of the number of steps taken.

    Parameters
    ----------
    lr_lambda : function ``(steps: int) -> float``, or list of them
        The factor; a list has one a group.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ValueError(explain("LambdaLR: lr_lambda", got=len(self.lr_lambdas), expected=f"{count}, one a group"))
        super().__init__(optimizer, last_epoch)

    def rates(self, epoch: int) -> list[float]:
        return [base * factor(epoch) for base, factor in zip(self.base_lrs, self.lr_lambdas, strict=False)]


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
