"""Scaling of losses where ranks hold parts of parameters: what one of them finds counts for all."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.comm import Communicator, DeviceMesh
from hpcdist.optim import GradScaler

__all__ = ["ShardedGradScaler"]


class ShardedGradScaler(GradScaler):
    """A GradScaler of distributed parameters: a gradient that is not finite on one rank skips the step of all.

    ``step`` or ``unscale_``, whichever comes first, exchanges one number: every rank calls it.

    Parameters
    ----------
    mesh : DeviceMesh or Communicator
        The ranks that hold parts of parameters; more do no harm.
    **options
        Those of ``optim.GradScaler``.
    """

    def __init__(self, mesh: DeviceMesh | Communicator, **options: Any) -> None:
        super().__init__(**options)
        comm = mesh if isinstance(mesh, Communicator) else mesh.get_mesh_group()
        self.agree = lambda found: bool(comm.all_reduce(np.array([float(found)]))[0])
