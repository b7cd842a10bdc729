"""A rank's place in a mesh: what it can say of it without communication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcdist.comm.communicator import Communicator
from hpcdist.comm.grid import Grid
from hpcdist.errors import DistError, explain

if TYPE_CHECKING:
    from hpcdist.comm.mesh import DeviceMesh

__all__ = ["MeshPlace"]


class MeshPlace:
    """Ranks along named axes, seen from one of them, or from a rank that is not among them.

    Attributes
    ----------
    comm : Communicator
        Whose ranks they are.
    """

    comm: Communicator
    _grid: Grid
    _root: DeviceMesh
    _coordinate: tuple[int, ...] | None
    _groups: tuple[Communicator, ...]

    @property
    def ranks(self) -> npt.NDArray[np.intp]:
        """Ranks of ``comm``, in the shape of the mesh."""
        return self._grid.ranks

    mesh = ranks

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return self._grid.names

    mesh_dim_names = axis_names

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of ranks along every axis."""
        return self._grid.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def size(self, mesh_dim: int | str | None = None) -> int:
        """Return the number of ranks along an axis, or of all."""
        return self.ranks.size if mesh_dim is None else self.shape[self._grid.axis(mesh_dim)]

    def get_rank(self) -> int:
        """Return this rank's number in ``comm``."""
        return self.comm.rank

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Return this rank's place, one number an axis; None if it is not in the mesh."""
        return self._coordinate

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return this rank's coordinate on an axis (needed if there are several); -1 if not in the mesh."""
        index = self._grid.axis(mesh_dim)
        return -1 if self._coordinate is None else self._coordinate[index]

    def get_group(self, mesh_dim: int | str | None = None) -> Communicator:
        """Return the communicator of this rank's row along an axis (needed if there are several).

        Raises
        ------
        DistError
            On a rank that is not in the mesh.
        """
        index = self._grid.axis(mesh_dim)
        return self.get_all_groups()[index]

    def get_all_groups(self) -> tuple[Communicator, ...]:
        """Return the communicator of this rank's row along every axis.

        Raises
        ------
        DistError
            On a rank that is not in the mesh.
        """
        self._check_member()
        return self._groups

    @property
    def memo(self) -> dict[Any, Any]:
        """What others have found out about this mesh, and all meshes made of it: it lives as long as they do."""
        return self._root._memo

    def _check_member(self) -> None:
        if self._coordinate is None:
            what = f"{self!r}: this rank is not in the mesh and has no group"
            do = "use groups on members only: elsewhere mesh.get_coordinate() is None"
            raise DistError(explain(what, got=f"rank {self.comm.rank}", expected=self._root.ranks.tolist(), do=do))

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in zip(self.axis_names, self.shape, strict=True))
        return f"DeviceMesh({axes}; rank {self.comm.rank} at {self._coordinate})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MeshPlace):
            return NotImplemented
        return self._root is other._root and self.axis_names == other.axis_names

    def __hash__(self) -> int:
        return hash((id(self._root), self.axis_names))
