"""Lower the rate when what is measured stops getting better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.errors import explain
from hpcdist.optim.optimizer import Optimizer

__all__ = ["ReduceLROnPlateau"]


class ReduceLROnPlateau:
    """Multiply the rate by ``factor`` after more than ``patience`` steps without progress.

    Every rank must pass the same metrics: their rates part otherwise.

    Parameters
    ----------
    optimizer : Optimizer
        Whose rates change.
    mode : str
        ``"min"`` or ``"max"``: which metrics are better.
    factor : float
        Below 1.
    patience, cooldown : int
        Steps without progress that are borne; steps after a change that do not count.
    threshold, threshold_mode : float, str
        Progress is a metric better than the best by ``threshold``, as a part of it (``"rel"``) or as it is (``"abs"``).
    min_lr : float or list of float
        Lowest rate; a list has one a group.
    eps : float
        A change that is not larger is not made.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1 or mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                explain(
                    "ReduceLROnPlateau",
                    got=f"factor {factor}, mode {mode!r}, threshold_mode {threshold_mode!r}",
                    expected="a factor below 1; 'min' or 'max'; 'rel' or 'abs'",
                )
            )
        groups = len(optimizer.param_groups)
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.eps = threshold, threshold_mode, cooldown, eps
        self.min_lrs = [float(min_lr)] * groups if isinstance(min_lr, (int, float)) else list(min_lr)
        if len(self.min_lrs) != groups:
            raise ValueError(explain("ReduceLROnPlateau: min_lr", got=len(self.min_lrs), expected=f"{groups} rates"))
        self.best = math.inf if mode == "min" else -math.inf
        self.last_epoch = self.num_bad_epochs = self.cooldown_counter = 0

    def step(self, metrics: float) -> None:
        """Take note of a metric; NaN is no progress."""
        value = float(metrics)
        self.last_epoch += 1
        if self._is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _is_better(self, value: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        if self.threshold_mode == "rel":
            return sign * value < sign * self.best * (1 - sign * self.threshold)
        return sign * value < sign * self.best - self.threshold

    def _reduce(self) -> None:
        for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            lowered = max(group["lr"] * self.factor, least)
            if group["lr"] - lowered > self.eps:
                group["lr"] = lowered

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    _KEPT = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")

    def state_dict(self) -> dict[str, Any]:
        """Return the best metric and the counts; the rates are the optimizer's."""
        return {name: getattr(self, name) for name in self._KEPT}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        for name in self._KEPT:
            setattr(self, name, type(getattr(self, name))(state[name]))
