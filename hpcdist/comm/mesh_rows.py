"""The communicators of a mesh: that of this rank's row along every axis."""

from __future__ import annotations

import numpy as np

from hpcdist.comm.communicator import Communicator
from hpcdist.comm.grid import Grid

__all__ = ["rows"]


def rows(members: Communicator, grid: Grid) -> tuple[Communicator, ...]:
    """Form the group of this rank's row along every axis; ``members`` lie in row-major order. Collective over them."""
    if len(grid.names) == 1:
        return (members,)
    return tuple(_row(members, grid, axis) for axis in range(len(grid.names)))


def _row(members: Communicator, grid: Grid, axis: int) -> Communicator:
    def says(member: int) -> tuple[int, int]:
        return grid.color_and_key(axis, tuple(map(int, np.unravel_index(member, grid.shape))))

    group = members.split_by(says)
    assert group is not None
    group.name = grid.names[axis]
    return group
