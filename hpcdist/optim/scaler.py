"""Scaling of losses so that 16-bit gradients do not vanish: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.kernels.optimizer import sum_squares
from hpcdist.kernels.precision import wide
from hpcdist.optim.optimizer import Optimizer

__all__ = ["GradScaler"]

SINGLE = 4  # bytes


class GradScaler:
    """Multiply the loss by a scale that adapts: as large as lets gradients be finite.

    ``scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()``. Gradients are divided by the scale in
    the pass of the update; a step whose gradients are not finite is skipped.

    Parameters
    ----------
    init_scale : float
        First scale.
    growth_factor, backoff_factor : float
        Factors of the scale after ``growth_interval`` steps that were finite, and after one that was not.
    growth_interval : int
        See there.
    enabled : bool
        False: change nothing.

    Attributes
    ----------
    agree : function ``(found: bool) -> bool``
        What all ranks say; gradients that were reduced are the same on all, and need none. Where ranks hold parts of
        parameters, ``parallel.ShardedGradScaler`` asks them.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._scale = _positive("GradScaler: init_scale", init_scale)
        if not (growth_factor > 1 and 0 < backoff_factor < 1 and growth_interval >= 1):
            raise ValueError(
                explain(
                    "GradScaler",
                    got=f"{growth_factor}, {backoff_factor}, {growth_interval}",
                    expected="growth_factor > 1, backoff_factor in (0, 1), growth_interval >= 1",
                )
            )
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval
        self.enabled, self.agree = enabled, _own_opinion
        self._good_steps = 0
        self._found: dict[int, bool] = {}
        self._unscaled: set[int] = set()
        self._stepped: set[int] = set()

    def get_scale(self) -> float:
        """Return the scale; 1 where not enabled."""
        return self._scale if self.enabled else 1.0

    def is_enabled(self) -> bool:
        """Say whether it does anything."""
        return self.enabled

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return loss * self._scale if self.enabled else loss

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale, in place; needed to look at them before the step.

        Raises
        ------
        RuntimeError
            If they were divided, or the step was taken, since the last ``update``.
        """
        if not self.enabled:
            return
        if id(optimizer) in self._unscaled:
            raise RuntimeError(explain("unscale_: gradients are unscaled already", do="call it once a step"))
        self._check_not_stepped("unscale_", optimizer)
        self._look(optimizer)
        for gradient in _gradients(optimizer):
            gradient[...] = wide(gradient) * (1 / self._scale)
        self._unscaled.add(id(optimizer))

    def _look(self, optimizer: Optimizer) -> bool:
        """Find out, once, whether a gradient is not finite."""
        if id(optimizer) not in self._found:
            if self.agree is _own_opinion:
                _check_whole(optimizer)
            self._found[id(optimizer)] = self.agree(not all(_is_finite(g) for g in _gradients(optimizer)))
        return self._found[id(optimizer)]

    def step(self, optimizer: Optimizer) -> Any:
        """Take a step of the optimizer, unless a gradient is not finite; return what its ``step`` returns, or None.

        Raises
        ------
        RuntimeError
            If it was called since the last ``update``.
        """
        if not self.enabled:
            return optimizer.step()
        self._check_not_stepped("step", optimizer)
        self._stepped.add(id(optimizer))
        if self._look(optimizer):
            optimizer.grad_scale = 1.0
            return None
        if id(optimizer) not in self._unscaled:
            optimizer.grad_scale /= self._scale
        return optimizer.step()

    def _check_not_stepped(self, what: str, optimizer: Optimizer) -> None:
        if id(optimizer) in self._stepped:
            do = "call update() after each step: whether gradients are finite is found out once in between"
            raise RuntimeError(explain(f"{what}: the step was taken already", do=do))

    def update(self, new_scale: float | None = None) -> None:
        """Adapt the scale to what the steps since the last ``update`` met; or set it."""
        if not self.enabled:
            return
        if not self._found and new_scale is None:
            raise RuntimeError(explain("update: no step was taken", do="call step(optimizer) first"))
        if new_scale is not None:
            self._scale = _positive("update: new_scale", new_scale)
        elif any(self._found.values()):
            self._scale, self._good_steps = self._scale * self.backoff_factor, 0
        else:
            self._good_steps += 1
            if self._good_steps == self.growth_interval:
                self._grow()
        self._found, self._unscaled, self._stepped = {}, set(), set()

    def _grow(self) -> None:
        grown = self._scale * self.growth_factor
        self._scale, self._good_steps = grown if math.isfinite(grown) else self._scale, 0

    def state_dict(self) -> dict[str, Any]:
        """Return scale, factors and counts."""
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._good_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        missing = self.state_dict().keys() - state.keys()
        if missing:
            raise ValueError(explain("GradScaler.load_state_dict: missing", got=[*state], expected=[*missing]))
        self._scale, self._good_steps = float(state["scale"]), int(state["_growth_tracker"])
        self.growth_factor, self.backoff_factor = float(state["growth_factor"]), float(state["backoff_factor"])
        self.growth_interval = int(state["growth_interval"])


def _positive(what: str, scale: Any) -> float:
    if not (isinstance(scale, Real) and 0 < float(scale) < math.inf):
        raise ValueError(explain(what, got=repr(scale), expected="a finite number above 0"))
    return float(scale)


def _own_opinion(found: bool) -> bool:
    return found


def _check_whole(optimizer: Optimizer) -> None:
    """Refuse parameters of which ranks hold parts: one would skip a step that others take."""
    if any(hasattr(p, "placements") for group in optimizer.param_groups for p in group["params"]):
        what, do = "GradScaler: parameters are distributed", "use hd.parallel.ShardedGradScaler, which asks all ranks"
        raise TypeError(explain(what, do=do))


def _gradients(optimizer: Optimizer) -> list[Array]:
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _is_finite(x: Array) -> bool:
    real = x.view(x.real.dtype) if x.dtype.kind == "c" else x
    if real.dtype.itemsize <= SINGLE:
        return math.isfinite(sum_squares(real.reshape(-1)))  # one pass; squares are float64, which holds them
    return bool(namespace(x).isfinite(real).all())
