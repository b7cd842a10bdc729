"""Schedules that are one formula: steps, lines, powers and cosines."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable

from hpcdist.errors import explain
from hpcdist.optim.optimizer import Optimizer
from hpcdist.optim.schedule import Curve

__all__ = [
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LinearLR",
    "MultiStepLR",
    "PolynomialLR",
    "StepLR",
]


class StepLR(Curve):
    """Multiply the rate by ``gamma`` every ``step_size`` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = _at_least(1, "StepLR: step_size", step_size), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        return base * self.gamma ** (epoch // self.step_size)


class MultiStepLR(Curve):
    """Multiply the rate by ``gamma`` at each of the ``milestones``; at one that is given twice, twice."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        return base * self.gamma ** bisect_right(self.milestones, epoch)


class ConstantLR(Curve):
    """Multiply the rate by ``factor`` for the first ``total_iters`` steps."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        self.factor, self.total_iters = _fraction("ConstantLR: factor", factor), total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        return base * self.factor if epoch < self.total_iters else base


class LinearLR(Curve):
    """Multiply the rate by a factor that goes from ``start_factor`` to ``end_factor`` in ``total_iters`` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if start_factor == 0:
            raise ValueError(explain("LinearLR: start_factor", got=0, expected="above 0, at most 1"))
        self.start_factor = _fraction("LinearLR: start_factor", start_factor)
        self.end_factor = _fraction("LinearLR: end_factor", end_factor)
        self.total_iters = _at_least(1, "LinearLR: total_iters", total_iters)
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        done = min(epoch / self.total_iters, 1.0)
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class ExponentialLR(Curve):
    """Multiply the rate by ``gamma`` every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        return base * self.gamma**epoch


class PolynomialLR(Curve):
    """Let the rate fall to 0 in ``total_iters`` steps, as a power of what is left of them."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = _at_least(1, "PolynomialLR: total_iters", total_iters), power
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        return base * (1 - min(epoch / self.total_iters, 1.0)) ** self.power


class CosineAnnealingLR(Curve):
    """Let the rate fall to ``eta_min`` in ``T_max`` steps along half a cosine, and rise again after that.

    Loshchilov, Hutter 2017, arXiv:1608.03983, equation 5.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = _at_least(1, "CosineAnnealingLR: T_max", T_max), eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        return _cosine(base, self.eta_min, epoch / self.T_max)


class CosineAnnealingWarmRestarts(Curve):
    """Fall along half a cosine in ``T_0`` steps, then start again, each time ``T_mult`` times as long."""

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_0 = _at_least(1, "CosineAnnealingWarmRestarts: T_0", T_0)
        self.T_mult = _at_least(1, "CosineAnnealingWarmRestarts: T_mult", T_mult)
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        length = self.T_0
        if self.T_mult == 1:
            epoch %= length
        while epoch >= length:
            epoch, length = epoch - length, length * self.T_mult
        return _cosine(base, self.eta_min, epoch / length)


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * progress))


def _at_least(least: int, what: str, value: int) -> int:
    if value < least:
        raise ValueError(explain(what, got=value, expected=f"at least {least}"))
    return value


def _fraction(what: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(explain(what, got=value, expected="0 to 1"))
    return value
