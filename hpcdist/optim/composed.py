"""Schedules made of schedules: one after another, or all at once."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from hpcdist.errors import explain
from hpcdist.optim.optimizer import Optimizer
from hpcdist.optim.schedule import LRScheduler

__all__ = ["ChainedScheduler", "SequentialLR"]


class SequentialLR(LRScheduler):
    """Follow ``schedulers[i]`` from step ``milestones[i - 1]`` on, counted from there."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        _check_same_optimizer("SequentialLR", optimizer, schedulers)
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        if len(self.milestones) != len(self.schedulers) - 1 or self.milestones != sorted(self.milestones):
            raise ValueError(
                explain("SequentialLR: milestones", got=milestones, expected=f"{len(schedulers) - 1}, rising")
            )
        super().__init__(optimizer, last_epoch)

    def _phase(self, epoch: int) -> tuple[LRScheduler, int]:
        i = bisect_right(self.milestones, epoch)
        return self.schedulers[i], epoch - (self.milestones[i - 1] if i else 0)

    def rates(self, epoch: int) -> list[float]:
        scheduler, since = self._phase(epoch)
        return scheduler.rates(since)

    def apply(self, epoch: int) -> None:
        scheduler, since = self._phase(epoch)
        scheduler.last_epoch = since
        scheduler.apply(since)


class ChainedScheduler(LRScheduler):
    """Multiply the initial rates by the factors of all ``schedulers``."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise ValueError(explain("ChainedScheduler: schedulers", got="none", expected="at least one"))
        optimizer = optimizer or schedulers[0].optimizer
        _check_same_optimizer("ChainedScheduler", optimizer, schedulers)
        self.schedulers = list(schedulers)
        super().__init__(optimizer)

    def rates(self, epoch: int) -> list[float]:
        bases = self.base_lrs
        each = [scheduler.rates(epoch) for scheduler in self.schedulers]
        return [
            base * math.prod(rate / base for rate in rates) if base else 0.0
            for base, rates in zip(bases, zip(*each, strict=True), strict=True)
        ]

    def apply(self, epoch: int) -> None:
        for scheduler in self.schedulers:
            scheduler.last_epoch = epoch
        super().apply(epoch)


def _check_same_optimizer(who: str, optimizer: Optimizer, schedulers: Sequence[LRScheduler]) -> None:
    for i, scheduler in enumerate(schedulers):
        if not isinstance(scheduler, LRScheduler):
            raise TypeError(explain(f"{who}: scheduler {i}", got=type(scheduler).__name__, expected="an LRScheduler"))
        if scheduler.optimizer is not optimizer:
            raise ValueError(explain(f"{who}: scheduler {i} is of another optimizer"))
