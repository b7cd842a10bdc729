"""PostLocalSGDOptimizer: an optimizer whose parameters are averaged over ranks after some of its steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from hpcdist.errors import explain
from hpcdist.optim.optimizer import Optimizer
from hpcdist.parallel.averaging import ModelAverager

__all__ = ["PostLocalSGDOptimizer"]


class PostLocalSGDOptimizer(Optimizer):
    """Take steps of ``optim`` on each rank alone, and have ``averager`` average parameters after them.

    In the warm-up of the averager gradients have to be averaged instead, as :func:`replicate` does: turn that off by
    ``set_requires_gradient_sync(False)`` once ``averager.step`` is ``averager.warmup_steps``. Parameter groups and the
    state are those of ``optim``. Nothing is sent but by the steps at which parameters are averaged.

    Parameters
    ----------
    optim : Optimizer
        What updates.
    averager : ModelAverager
        A :class:`PeriodicModelAverager` or :class:`HierarchicalModelAverager`; each step counts there once.

    Raises
    ------
    TypeError
        If something is of another class.
    """

    def __init__(self, optim: Optimizer, averager: ModelAverager) -> None:
        for name, given, kind in (("optim", optim, Optimizer), ("averager", averager, ModelAverager)):
            if not isinstance(given, kind):
                what = f"PostLocalSGDOptimizer: {name}"
                raise TypeError(explain(what, got=type(given).__name__, expected=kind.__name__))
        self.optim, self.averager = optim, averager
        self.param_groups, self.state, self.defaults = optim.param_groups, optim.state, optim.defaults
        self.pre, self.post, self.grad_scale = [], [], 1.0

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters, with options of their own where ``group`` has them; see :class:`Optimizer`."""
        self.optim.add_param_group(group)

    def step(self, closure: Any = None) -> Any:
        """Update every parameter that has a gradient, then average, if it is time to.

        Collective over the ranks that average then, and local at other steps. See :meth:`Optimizer.step`.
        """
        return super().step(closure)

    def _update_all(self) -> None:
        self.optim.grad_scale *= self.grad_scale
        self.optim.step()
        self.averager.average_parameters(self.param_groups)

    def state_dict(self) -> dict[str, Any]:
        """Return that of ``optim``, and "step": the steps that the averager has counted."""
        return {**self.optim.state_dict(), "step": self.averager.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned, on any number of ranks.

        Without a "step", as from another optimizer, it warns, and steps count from 0: there is a warm-up again.
        """
        self.optim.load_state_dict(state)
        self.state = self.optim.state
        if "step" not in state:
            warnings.warn(
                "PostLocalSGDOptimizer.load_state_dict: the state has no step: the averager counts from 0, with a "
                "warm-up; set averager.step if steps were taken",
                stacklevel=2,
            )
        self.averager.step = int(state.get("step", 0))
