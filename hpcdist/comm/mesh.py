"""The mesh: ranks arranged along named axes, and a communicator for every row of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Self

import numpy as np

from hpcdist.comm.communicator import Communicator
from hpcdist.comm.grid import Grid, Names, position
from hpcdist.comm.mesh_arguments import arrangement, check_groups, check_same, communicator
from hpcdist.comm.mesh_place import MeshPlace
from hpcdist.comm.mesh_rows import rows
from hpcdist.errors import explain

__all__ = ["DeviceMesh", "current_mesh", "init_device_mesh"]

_entered: ContextVar[tuple[DeviceMesh, ...]] = ContextVar("meshes", default=())
"""The meshes whose ``with`` blocks this thread is in."""


class DeviceMesh(MeshPlace):
    """Ranks of a communicator, arranged along named axes.

    Creation is collective over ``comm``: ranks outside the mesh call it too. They may ask it questions (their
    coordinate is None), but not for groups. In a ``with`` block the mesh is the :func:`current_mesh`.

    Parameters
    ----------
    ranks : nested sequence of int, one level an axis
        Ranks of ``comm``, each at most once. The place in it decides the order: a rank's position in the group
        of an axis is its coordinate there, whatever its rank.
    names : str or sequence of str, optional
        One an axis; default axis0, axis1 ...
    comm : Communicator, optional
        Default: the one of :func:`hpcdist.init`.
    mesh, mesh_dim_names
        PyTorch's words for ``ranks`` and ``names``.
    device_type : "cpu" or "cuda", optional
        Accepted and dropped, also where it stands first, as in PyTorch: an array knows where it is.

    Attributes
    ----------
    comm : Communicator
        As given.

    Raises
    ------
    ValueError, TypeError
        The same on every rank, whichever rank gave wrong arguments.
    """

    def __init__(
        self,
        ranks: Any = None,
        names: Any = None,
        comm: Communicator | None = None,
        *,
        mesh: Any = None,
        mesh_dim_names: Names = None,
        device_type: str | None = None,
    ) -> None:
        comm = communicator(comm)
        with comm.agreed():
            ranks, names = arrangement("DeviceMesh: ranks", ranks, names, mesh, mesh_dim_names, device_type)
            grid = Grid.checked(ranks, names, comm.size)
        check_same(comm, grid.ranks.tolist(), grid.names)
        self._plant(comm, grid)
        order = {rank: place for place, rank in enumerate(grid.ranks.reshape(-1).tolist())}
        members = comm.split_by(lambda rank: (0, order[rank]) if rank in order else (None, 0))
        if members is not None:
            members.name = ", ".join(grid.names)
            self._groups = rows(members, grid)
            self._mesh_groups[grid.names] = members

    def _plant(self, comm: Communicator, grid: Grid) -> None:
        """Become a mesh that is no part of another, with no group yet."""
        self.comm, self._grid, self._root = comm, grid, self
        self._coordinate = grid.coordinate(comm.rank)
        self._groups: tuple[Communicator, ...] = ()
        self._named: dict[str, DeviceMesh] = {}
        self._mesh_groups: dict[tuple[str, ...], Communicator] = {}
        self._memo: dict[Any, Any] = {}

    @classmethod
    def from_group(
        cls,
        group: Communicator | Sequence[Communicator],
        device_type: str | None = None,
        mesh: Any = None,
        *,
        mesh_dim_names: Names = None,
        comm: Communicator | None = None,
    ) -> Self:
        """Return a mesh of groups that are there already. Communicates with nobody.

        Parameters
        ----------
        group : Communicator, or one an axis
            Those of this rank's rows.
        device_type
            As for :class:`DeviceMesh`.
        mesh : nested sequence of int, one level an axis
            Global ranks, as in ``members`` of a group. Default: those of the one group.
        mesh_dim_names : str or sequence of str, optional
            One an axis; default axis0, axis1 ...
        comm : Communicator, optional
            Has all of these ranks. Default: the one group, or the default communicator if there are several.

        Raises
        ------
        ValueError
            If the ranks of a group are not those of this rank's row.
        """
        groups = (group,) if isinstance(group, Communicator) else tuple(group)
        what = "DeviceMesh.from_group: mesh"
        check_groups(what, groups)
        if len(groups) == 1:
            comm, mesh = comm or groups[0], list(groups[0].members) if mesh is None else mesh
        comm = communicator(comm)
        members, names = arrangement(what, None, None, mesh, mesh_dim_names, device_type)
        grid = Grid.checked(Grid.places(members, comm.members), names, comm.size)
        made = object.__new__(cls)
        made._plant(comm, grid)
        expected = [[comm.members[rank] for rank in row] for row in grid.rows(made._coordinate)]
        got = [list(one.members) for one in groups]
        if got != expected:
            raise ValueError(explain(f"{what}: members of groups, one an axis", got=got, expected=expected))
        made._groups = groups
        return made

    def get_mesh_group(self) -> Communicator:
        """Return the communicator of all ranks of this mesh, in row-major order. Equal meshes have the same one.

        Collective over the ranks of this mesh, if it is a part with several axes that nobody has asked for before.

        Raises
        ------
        DistError
            On a rank that is not in the mesh.
        """
        self._check_member()
        if self.ndim == 1:
            return self._groups[0]
        formed = self._root._mesh_groups
        if self.axis_names not in formed:
            formed[self.axis_names] = self._form_group(", ".join(self.axis_names))
        return formed[self.axis_names]

    def _form_group(self, name: str) -> Communicator:
        """Form a group of all ranks of this mesh. Collective over them."""
        group = self.comm.create_group(self.ranks.reshape(-1).tolist())
        group.name = name
        return group

    # ---- the current mesh
    def __enter__(self) -> Self:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _entered.set(_entered.get()[:-1])

    # ---- meshes of the same ranks
    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the mesh of the named axes, in their order here, at this rank's place on the others.

        Communicates with nobody: groups are those of this mesh. Names given to :meth:`flatten` and :meth:`unflatten`
        are known.
        """
        names = (names,) if isinstance(names, str) else tuple(names)
        if len(names) == 1 and names[0] in self._root._named:
            return self._root._named[names[0]]
        axes = [self.axis_names.index(name) if name in self.axis_names else -1 for name in names]
        if not axes or axes[0] < 0 or axes != sorted(set(axes)):
            raise KeyError(f"DeviceMesh: got axes {names}, expected some of {self._known()}, each once, in this order")
        here = self._coordinate
        return self._derived(
            self._grid.part(axes, here or (0,) * self.ndim),
            tuple(here[axis] for axis in axes) if here else None,
            tuple(self._groups[axis] for axis in axes) if here else (),
        )

    def flatten(self, name: str) -> DeviceMesh:
        """Return a mesh of one axis ``name`` that runs through all axes of this one, the last one fastest.

        Collective over the ranks of this mesh, if it has several axes. It is then found as ``mesh[name]``, too, of the
        mesh that this is part of.

        Raises
        ------
        ValueError
            If the name is taken.
        """
        self._check_member()
        self._check_new("flatten", name)
        here = position(self._coordinate or (), self.shape)
        groups = self._groups if self.ndim == 1 else (self._form_group(name),)
        flat = self._derived(self._grid.flat(name), (here,), groups)
        self._root._named[name] = flat
        return flat

    def unflatten(self, dim: int | str, sizes: Sequence[int], names: Sequence[str]) -> DeviceMesh:
        """Return this mesh with several axes in place of one, the last one fastest.

        Collective over the ranks along that axis. The new ones are then found as ``mesh[name]``, too, of the mesh that
        this is part of.

        Parameters
        ----------
        dim : int or str
            The axis.
        sizes : sequence of int
            Extents of the new ones; their product is that of the old one.
        names : sequence of str

        Raises
        ------
        ValueError, TypeError
            If sizes or names do not fit, or a name is taken; the same on every rank along the axis.
        """
        axis, group = self._grid.axis(dim), self.get_group(dim)
        with group.agreed():
            inner = Grid.within(sizes, names, group.size)
            for name in inner.names:
                self._check_new("unflatten", name)
        check_same(group, inner.shape, inner.names)
        here, coordinate = self._coordinate or (), inner.coordinate(group.rank) or ()
        cut = self._derived(
            self._grid.unflat(axis, inner),
            (*here[:axis], *coordinate, *here[axis + 1 :]),
            (*self._groups[:axis], *rows(group, inner), *self._groups[axis + 1 :]),
        )
        self._root._named |= {name: cut[name] for name in inner.names}
        return cut

    @classmethod
    def concatenate(cls, meshes: Sequence[DeviceMesh]) -> DeviceMesh:
        """Return the mesh with the axes of several parts of one mesh, in this order.

        Communicates with nobody: groups are those of the parts.

        Raises
        ------
        ValueError
            If they are parts of different meshes, or run along the same axis.
        """
        if not meshes or any(mesh._root is not meshes[0]._root for mesh in meshes):
            raise ValueError(explain("DeviceMesh.concatenate: meshes", got=list(meshes), expected="parts of one mesh"))
        root = meshes[0]._root
        here = None if root._coordinate is None else tuple(c for mesh in meshes for c in mesh._coordinate or ())
        rank = root.ranks.flat[0] if here is None else root.comm.rank
        grid = root._grid.joined([mesh._grid for mesh in meshes], int(rank))
        return root._derived(grid, here, tuple(group for mesh in meshes for group in mesh._groups))

    def _derived(self, grid: Grid, coordinate: tuple[int, ...] | None, groups: tuple[Communicator, ...]) -> DeviceMesh:
        """Return a mesh that shares this one's root."""
        mesh = object.__new__(DeviceMesh)
        mesh.comm, mesh._root, mesh._grid = self.comm, self._root, grid
        mesh._coordinate, mesh._groups = coordinate, groups
        return mesh

    def _check_new(self, verb: str, name: str) -> None:
        if name in self._root.axis_names or name in self._root._named:
            expected = f"none of {self._root._known()}"
            raise ValueError(explain(f"DeviceMesh.{verb}: name", got=repr(name), expected=expected))

    def _known(self) -> str:
        return ", ".join((*self.axis_names, *self._root._named))


def init_device_mesh(
    shape: Any = None,
    names: Any = None,
    comm: Communicator | None = None,
    *,
    mesh_shape: Any = None,
    mesh_dim_names: Names = None,
    device_type: str | None = None,
) -> DeviceMesh:
    """Arrange the first ranks of a communicator as a mesh, the last axis fastest. Collective over ``comm``.

    Parameters
    ----------
    shape : sequence of int, or int
        Number of ranks along every axis; their product may be less than ``comm.size``. PyTorch's word: mesh_shape.
    names, comm, mesh_dim_names, device_type
        As for :class:`DeviceMesh`.
    """
    comm = communicator(comm)
    with comm.agreed():
        shape, names = arrangement("init_device_mesh: shape", shape, names, mesh_shape, mesh_dim_names, device_type)
        sizes = tuple(operator.index(n) for n in np.atleast_1d(shape))
        if not sizes or min(sizes) < 1 or math.prod(sizes) > comm.size:
            text = f"one number or more, each at least 1, their product at most {comm.size}, the number of ranks"
            raise ValueError(explain("init_device_mesh: shape", got=sizes, expected=text))
    return DeviceMesh(np.arange(math.prod(sizes)).reshape(sizes), names, comm)


def current_mesh() -> DeviceMesh | None:
    """Return the mesh whose ``with`` block this thread is in, the innermost of several; None outside."""
    meshes = _entered.get()
    return meshes[-1] if meshes else None
