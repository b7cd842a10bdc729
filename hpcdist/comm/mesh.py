"""The mesh: ranks arranged along named axes, and a communicator for every row of them."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdist.comm.communicator import Communicator
from hpcdist.comm.grid import Grid, Names, position
from hpcdist.errors import DistError, explain

__all__ = ["DeviceMesh", "init_device_mesh"]

DEVICES = ("cpu", "cuda")


class DeviceMesh:
    """Ranks of a communicator, arranged along named axes.

    Creation is collective over ``comm``: ranks outside the mesh call it too. They may ask it questions (their
    coordinate is None), but not for groups.

    Parameters
    ----------
    ranks : nested sequence of int, one level an axis
        Ranks of ``comm``, each at most once. The place in it decides the order: a rank's position in the group
        of an axis is its coordinate there, whatever its rank.
    names : str or sequence of str, optional
        One an axis; default axis0, axis1 ...
    comm : Communicator, optional
        Default: the one of :func:`hpcdist.init`.
    mesh_dim_names : sequence of str, optional
        PyTorch's word for ``names``. PyTorch's leading device, "cpu" or "cuda", is accepted and dropped, too:
        an array knows where it is.

    Attributes
    ----------
    comm : Communicator
        As given.

    Raises
    ------
    ValueError, TypeError
        The same on every rank, whichever rank gave wrong arguments.
    """

    comm: Communicator
    _grid: Grid
    _root: DeviceMesh
    _axes: tuple[int, ...]
    _coordinate: tuple[int, ...] | None
    _groups: tuple[Communicator, ...]

    def __init__(
        self, ranks: Any, names: Any = None, comm: Communicator | None = None, *, mesh_dim_names: Names = None
    ) -> None:
        self.comm = comm = _default(comm)
        with comm.agreed():
            ranks, names = _without_device(ranks, names, mesh_dim_names)
            self._grid = Grid.checked(ranks, names, comm.size)
        _check_same(comm, self.ranks.tolist(), self.axis_names)
        self._root, self._axes = self, tuple(range(self.ndim))
        self._flattened: dict[str, DeviceMesh] = {}
        self._memo: dict[Any, Any] = {}
        self._coordinate = self._grid.coordinate(comm.rank)
        order = {rank: place for place, rank in enumerate(self.ranks.reshape(-1).tolist())}
        self._members = comm.split_by(lambda rank: (0, order[rank]) if rank in order else (None, 0))
        self._groups = self._form_groups()

    def _form_groups(self) -> tuple[Communicator, ...]:
        """Form the group of this rank's row along every axis. Collective over the mesh's ranks."""
        if self._members is None:
            return ()
        self._members.name = ", ".join(self.axis_names)
        if self.ndim == 1:
            return (self._members,)
        return tuple(self._form_group((axis,), name) for axis, name in enumerate(self.axis_names))

    def _form_group(self, axes: tuple[int, ...], name: str) -> Communicator:
        """Form the group of ranks that differ along ``axes`` only. Collective over the mesh's ranks."""
        assert self._members is not None

        def says(member: int) -> tuple[int, int]:
            place = np.unravel_index(member, self.shape)  # members lie in row-major order
            return self._grid.color_and_key(axes, tuple(map(int, place)))

        group = self._members.split_by(says)
        assert group is not None
        group.name = name
        return group

    # ---- questions, answered without communication
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
        if self._coordinate is None:
            what = f"{self!r}: this rank is not in the mesh and has no group"
            do = "use groups on members only: elsewhere mesh.get_coordinate() is None"
            raise DistError(explain(what, got=f"rank {self.comm.rank}", expected=self._root.ranks.tolist(), do=do))
        return self._groups

    @property
    def memo(self) -> dict[Any, Any]:
        """What others have found out about this mesh, and all meshes made of it: it lives as long as they do."""
        return self._root._memo

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in zip(self.axis_names, self.shape, strict=True))
        return f"DeviceMesh({axes}; rank {self.comm.rank} at {self._coordinate})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self._root is other._root and self.axis_names == other.axis_names

    def __hash__(self) -> int:
        return hash((id(self._root), self.axis_names))

    # ---- meshes of some of the axes
    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the mesh of the named axes, in their order here, at this rank's place on the others.

        Communicates with nobody: groups are those of this mesh. Names given to :meth:`flatten` are known.
        """
        names = (names,) if isinstance(names, str) else tuple(names)
        if len(names) == 1 and names[0] in self._root._flattened:
            return self._root._flattened[names[0]]
        axes = [self.axis_names.index(name) if name in self.axis_names else -1 for name in names]
        if not axes or axes[0] < 0 or axes != sorted(set(axes)):
            raise KeyError(f"DeviceMesh: got axes {names}, expected some of {self._known()}, each once, in this order")
        here = self._coordinate
        part = self._derived(self._grid.part(axes, here or (0,) * self.ndim), tuple(self._axes[a] for a in axes))
        part._coordinate = tuple(here[axis] for axis in axes) if here else None
        part._groups = tuple(self._groups[axis] for axis in axes) if here else ()
        return part

    def flatten(self, name: str) -> DeviceMesh:
        """Return a mesh of one axis ``name`` that runs through all axes of this one, the last one fastest.

        Collective over all ranks of the mesh that this is part of, where it is then found as ``mesh[name]``.

        Raises
        ------
        ValueError
            If the name is taken.
        """
        root, groups = self._root, self.get_all_groups()
        if name in root.axis_names or name in root._flattened:
            raise ValueError(explain("DeviceMesh.flatten: name", got=repr(name), expected=f"none of {root._known()}"))
        flat = self._derived(self._grid.flat(name), ())
        flat._coordinate = (position(self._coordinate or (), self.shape),)
        flat._groups = groups if self.ndim == 1 else (root._form_group(self._axes, name),)
        root._flattened[name] = flat
        return flat

    def _derived(self, grid: Grid, axes: tuple[int, ...]) -> DeviceMesh:
        """Return a mesh that shares this one's root, whose ``axes`` are its own."""
        mesh = object.__new__(DeviceMesh)
        mesh.comm, mesh._root, mesh._grid, mesh._axes = self.comm, self._root, grid, axes
        return mesh

    def _known(self) -> str:
        return ", ".join((*self.axis_names, *self._root._flattened))


def init_device_mesh(
    shape: Any, names: Any = None, comm: Communicator | None = None, *, mesh_dim_names: Names = None
) -> DeviceMesh:
    """Arrange the first ranks of a communicator as a mesh, the last axis fastest. Collective over ``comm``.

    Parameters
    ----------
    shape : sequence of int, or int
        Number of ranks along every axis; their product may be less than ``comm.size``.
    names, comm, mesh_dim_names
        As for :class:`DeviceMesh`; a device before ``shape`` is accepted, too.
    """
    comm = _default(comm)
    with comm.agreed():
        shape, names = _without_device(shape, names, mesh_dim_names)
        sizes = tuple(operator.index(n) for n in np.atleast_1d(shape))
        if not sizes or min(sizes) < 1 or math.prod(sizes) > comm.size:
            text = f"one number or more, each at least 1, their product at most {comm.size}, the number of ranks"
            raise ValueError(explain("init_device_mesh: shape", got=sizes, expected=text))
    return DeviceMesh(np.arange(math.prod(sizes)).reshape(sizes), names, comm)


def _default(comm: object) -> Communicator:
    if comm is None:
        from hpcdist.comm.init import get_default

        return get_default()
    if not isinstance(comm, Communicator):
        do = "call it on ranks of the communicator only"
        raise TypeError(explain("DeviceMesh: comm", got=repr(comm), expected="a communicator", do=do))
    return comm


def _without_device(first: Any, second: Any, mesh_dim_names: Names) -> tuple[Any, Names]:
    """Return the ranks or shape and the names, whether or not a device stands before them."""
    if not isinstance(first, str):
        return first, second if mesh_dim_names is None else mesh_dim_names
    if first not in DEVICES:
        do = "leave it out: an array knows where it is"
        raise ValueError(explain("DeviceMesh: device", got=repr(first), expected=" or ".join(DEVICES), do=do))
    return second, mesh_dim_names


def _check_same(comm: Communicator, *arguments: Any) -> None:
    """Raise on every rank if ranks passed different arguments. Collective over ``comm``."""
    everyone = comm.all_gather_object(arguments)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            got = f"rank 0: {everyone[0]}, rank {rank}: {theirs}"
            raise ValueError(explain("DeviceMesh: arguments", got=got, expected="the same on every rank"))
