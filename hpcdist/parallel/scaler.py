"""Scaling of losses where ranks hold different parts of gradients: one that is not finite makes all skip the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.comm import Communicator, DeviceMesh, ReduceOp
from hpcdist.optim import GradScaler
from hpcdist.optim.optimizer import Optimizer

__all__ = ["ShardedGradScaler"]


class ShardedGradScaler(GradScaler):
    """A :class:`~hpcdist.optim.GradScaler` that all ranks use together: scales and skipped steps are the same on all.

    Where gradients are whole on every rank, and reduced (``replicate``), the plain one does.

    Parameters
    ----------
    process_group : Communicator or DeviceMesh, optional
        Ranks that hold all parts between them; default: all ranks.
    others
        See :class:`~hpcdist.optim.GradScaler`.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: Communicator | DeviceMesh | None = None,
    ) -> None:
        super().__init__(init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        if process_group is None:
            from hpcdist.comm.init import get_default

            process_group = get_default()
        self.comm = process_group if isinstance(process_group, Communicator) else process_group.get_mesh_group()
        self.agree = self._any_found

    def _any_found(self, found: bool) -> bool:
        return bool(self.comm.all_reduce(np.array([found], np.uint8), ReduceOp.MAX)[0])

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale, in place. Collective over the group: one number."""
        super().unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> Any:
        """Take a step of the optimizer, unless a rank has a gradient that is not finite; return what its ``step`` does.

        Collective over the group: one number, unless :meth:`unscale_` has asked.
        """
        return super().step(optimizer)
