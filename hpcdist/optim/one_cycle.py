"""The 1cycle policy: Smith and Topin 2019, arXiv:1708.07120."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.errors import explain
from hpcdist.optim.optimizer import Optimizer
from hpcdist.optim.schedule import LRScheduler

__all__ = ["OneCycleLR", "anneal"]


class OneCycleLR(LRScheduler):
    """Raise the rate to ``max_lr``, let it fall far below where it began, and move the momentum the other way.

    Parameters
    ----------
    max_lr : float or list of float
        The highest rate; a list has one a group.
    total_steps : int, optional
        Length of the cycle; else ``epochs * steps_per_epoch``.
    pct_start : float
        Part of the cycle in which the rate rises.
    anneal_strategy : str
        ``"cos"`` or ``"linear"``.
    cycle_momentum : bool
        Whether ``momentum``, or the first of ``betas``, goes from ``max_momentum`` to ``base_momentum`` and back.
    div_factor, final_div_factor : float
        The first rate is ``max_lr / div_factor``, the last that divided by ``final_div_factor``.
    three_phase : bool
        Fall back to the first rate as fast as it rose, and only then to the last.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        self.max_lrs = [float(max_lr)] * groups if isinstance(max_lr, (int, float)) else list(max_lr)
        self.total_steps = total_steps if total_steps is not None else (epochs or 0) * (steps_per_epoch or 0)
        self.anneal = anneal(anneal_strategy)
        if self.total_steps < 1 or not 0 <= pct_start <= 1 or len(self.max_lrs) != groups:
            raise ValueError(
                explain(
                    "OneCycleLR",
                    got=f"{self.total_steps} steps, pct_start {pct_start}, {len(self.max_lrs)} rates",
                    expected=f"total_steps, or epochs and steps_per_epoch; pct_start 0 to 1; {groups} rates",
                )
            )
        if cycle_momentum and not ({"momentum", "betas"} & optimizer.defaults.keys()):
            raise ValueError(explain("OneCycleLR: the optimizer has no momentum", do="say cycle_momentum=False"))
        self.momenta = (base_momentum, max_momentum) if cycle_momentum else None
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self.ends = self._ends(pct_start, three_phase)
        super().__init__(optimizer, last_epoch)

    def _ends(self, pct_start: float, three_phase: bool) -> list[float]:
        """Return the last step of each phase."""
        rise = pct_start * self.total_steps - 1
        back = [2 * pct_start * self.total_steps - 2] if three_phase else []
        return [rise, *back, self.total_steps - 1]

    def rates(self, epoch: int) -> list[float]:
        return [self._rate(top, epoch) for top in self.max_lrs]

    def _rate(self, top: float, epoch: int) -> float:
        first = top / self.div_factor
        last = first / self.final_div_factor
        return self._between(epoch, [first, top, first, last] if len(self.ends) == 3 else [first, top, last])

    def _between(self, epoch: int, values: list[float]) -> float:
        """Return where step ``epoch`` is between the values at the ends of the phases."""
        start = 0.0
        for i, end in enumerate(self.ends):
            if epoch <= end or i == len(self.ends) - 1:
                return self.anneal(values[i], values[i + 1], (epoch - start) / (end - start) if end > start else 1.0)
            start = end
        raise AssertionError("a cycle has phases")

    def apply(self, epoch: int) -> None:
        if epoch > self.total_steps:
            raise ValueError(
                explain("OneCycleLR: the cycle is over", got=f"step {epoch}", expected=f"{self.total_steps} steps")
            )
        super().apply(epoch)
        if self.momenta is not None:
            low, high = self.momenta
            value = self._between(epoch, [high, low, high, high] if len(self.ends) == 3 else [high, low, high])
            for group in self.optimizer.param_groups:
                _set_momentum(group, value)


def _set_momentum(group: dict[str, Any], value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


def anneal(strategy: str) -> Callable[[float, float, float], float]:
    """Return the function ``(start, end, progress) -> value`` called ``"cos"`` or ``"linear"``."""
    known = {"cos": _cos, "linear": _linear}
    if strategy not in known:
        raise ValueError(explain("anneal_strategy", got=repr(strategy), expected="'cos' or 'linear'"))
    return known[strategy]


def _cos(start: float, end: float, progress: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * progress))


def _linear(start: float, end: float, progress: float) -> float:
    return start + (end - start) * progress
