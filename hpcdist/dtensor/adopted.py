"""Plain tensors beside distributed ones: they count as the same on every rank, and are compared in check mode."""

from __future__ import annotations

from hpcdist.autograd import Tensor
from hpcdist.comm.mesh import DeviceMesh
from hpcdist.comm.observing import unobserved
from hpcdist.dtensor.distribute import from_local
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant
from hpcdist.dtensor.tensor import DTensor

__all__ = ["adopted"]


def adopted(x: Tensor, mesh: DeviceMesh) -> DTensor:
    """Return a plain tensor as one that all ranks have. In check mode, Collective over the mesh.

    Raises
    ------
    ValueError
        In check mode, on every rank, if they have others.
    """
    placements = [Invariant()] * mesh.ndim
    if not mesh.comm.check:
        return DTensor(x, Layout.of(mesh, placements, x.shape))
    try:
        with unobserved():
            return from_local(x, mesh, placements, run_check=True)
    except ValueError as error:
        raise ValueError(f"a plain tensor that counts as the same on all ranks of the mesh is not: {error}") from None
