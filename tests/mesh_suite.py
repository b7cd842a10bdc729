"""Meshes: bodies of tests that take a communicator of 1 to 4 ranks."""

import itertools

import numpy as np
import pytest

from hpcdist.comm import DeviceMesh, DistError, init_device_mesh

SHAPES = {1: [(1,), (1, 1)], 2: [(2,), (2, 1), (1, 2)], 3: [(3,), (1, 3)], 4: [(4,), (2, 2), (4, 1), (1, 2, 2)]}
NAMES = ("pp", "dp", "tp")


def meshes(comm):
    """Yield every mesh of all ranks of ``comm``, in order and with its ranks reversed, with the array of its ranks."""
    for shape in SHAPES[comm.size]:
        names = NAMES[-len(shape) :]
        ranks = np.arange(comm.size).reshape(shape)
        yield init_device_mesh(shape, names, comm), ranks
        yield DeviceMesh(ranks[::-1].tolist(), names, comm), ranks[::-1]


def row(ranks, here, axes):
    """Return the ranks that share the place ``here`` on all but ``axes``."""
    return ranks[tuple(slice(None) if axis in axes else here[axis] for axis in range(ranks.ndim))]


def check_questions(comm):
    for mesh, ranks in meshes(comm):
        here = tuple(int(i) for i in np.argwhere(ranks == comm.rank)[0])
        assert mesh.get_coordinate() == here
        assert [mesh.get_local_rank(name) for name in mesh.axis_names] == list(here)
        assert [mesh.size(axis) for axis in range(mesh.ndim)] == list(ranks.shape) == list(mesh.shape)
        assert mesh.size() == comm.size
        assert mesh.get_rank() == comm.rank
        assert mesh.mesh_dim_names == mesh.axis_names
        np.testing.assert_array_equal(mesh.mesh, ranks)


def check_groups(comm):
    """A group's ranks are those of the row, in the order of coordinates."""
    for mesh, ranks in meshes(comm):
        for axis, group in enumerate(mesh.get_all_groups()):
            assert group.rank == mesh.get_coordinate()[axis]
            gathered = group.all_gather(np.array([comm.rank])).tolist()
            assert gathered == row(ranks, mesh.get_coordinate(), [axis]).tolist()
            assert mesh.get_group(mesh_dim=mesh.axis_names[axis]) is group
            assert [comm.members[rank] for rank in gathered] == list(group.members)


def check_parts(comm):
    """Every choice of axes is a mesh of this rank's row, with the groups of the whole, and can be flattened."""
    for mesh, ranks in meshes(comm):
        for count in range(1, mesh.ndim + 1):
            for axes in itertools.combinations(range(mesh.ndim), count):
                names = tuple(mesh.axis_names[axis] for axis in axes)
                part = mesh[names]
                here = mesh.get_coordinate()
                np.testing.assert_array_equal(part.ranks, row(ranks, here, axes))
                assert part.axis_names == names
                assert part.get_coordinate() == tuple(here[axis] for axis in axes)
                assert [part.get_group(i) for i in range(count)] == [mesh.get_group(axis) for axis in axes]
                assert part == mesh[names]
                assert (part == mesh) == (count == mesh.ndim)
                check_flat(part, mesh, "_".join(("flat", *names)))


def check_flat(part, mesh, name):
    flat = part.flatten(name)
    assert mesh[name] is flat
    assert flat.axis_names == (name,)
    assert flat.ranks.tolist() == part.ranks.ravel().tolist()
    group = flat.get_group()
    assert group.rank == flat.get_local_rank()
    assert group.all_gather(np.array([mesh.get_rank()])).tolist() == flat.ranks.tolist()
    with pytest.raises(ValueError, match="flatten: name"):
        part.flatten(name)


def check_smaller_than_the_world(comm):
    """A mesh of the even ranks: they sum and average; others are told, and the world goes on (case B09)."""
    members = list(range(0, comm.size, 2))
    mesh = DeviceMesh(members, "dp", comm)
    value = np.array([comm.rank + 1.0])
    total = sum(rank + 1 for rank in members)
    assert mesh.size() == len(members)
    assert mesh.ranks.tolist() == members
    if comm.rank in members:
        group = mesh.get_group()
        assert mesh.get_coordinate() == (comm.rank // 2,)
        assert group.all_reduce(value).tolist() == [total]
        assert group.all_reduce(value, "avg").tolist() == [total / len(members)]
        assert group.broadcast(value, root=len(members) - 1).tolist() == [members[-1] + 1]
    else:
        assert mesh.get_coordinate() is None
        assert mesh.get_local_rank() == -1
        assert mesh["dp"].get_coordinate() is None
        for ask in (mesh.get_group, mesh.get_all_groups, mesh["dp"].get_group, lambda: mesh.flatten("all")):
            with pytest.raises(DistError, match="this rank is not in the mesh"):
                ask()
    assert comm.all_reduce(value).tolist() == [sum(range(1, comm.size + 1))]


def check_smaller_with_two_axes(comm):
    half = max(comm.size // 2, 1)
    mesh = init_device_mesh((half, 1), ("dp", "tp"), comm)
    assert (mesh.get_coordinate() is None) == (comm.rank >= half)
    assert mesh["tp"].size() == 1
    assert comm.all_reduce(np.array([1])).tolist() == [comm.size]


def check_refusals(comm):
    """Wrong arguments raise the same error on every rank, also where one rank only is wrong, and the group goes on."""
    size = comm.size
    for error, match, make in [
        (ValueError, "at most once", lambda: DeviceMesh([0, 0], "x", comm)),
        (ValueError, "ranks from 0 to", lambda: DeviceMesh([size], "x", comm)),
        (ValueError, "ranks from 0 to", lambda: DeviceMesh([-1], "x", comm)),
        (TypeError, "integers", lambda: DeviceMesh([0.5], "x", comm)),
        (ValueError, "names, one an axis", lambda: DeviceMesh([[0]], ("x", "x"), comm)),
        (ValueError, "names, one an axis", lambda: DeviceMesh([[0]], ("x",), comm)),
        (TypeError, "strings", lambda: DeviceMesh([0], (1,), comm)),
        (ValueError, "their product at most", lambda: init_device_mesh((size + 1,), "x", comm)),
        (ValueError, "their product at most", lambda: init_device_mesh((0,), "x", comm)),
        (TypeError, "integer", lambda: init_device_mesh((0.5,), "x", comm)),
        (ValueError, "device", lambda: init_device_mesh("cuda:0", (1,), comm)),
        (ValueError, "ranks from 0 to", lambda: DeviceMesh([0 if comm.rank else size], "x", comm)),
    ]:
        with pytest.raises(error, match=match) as caught:
            make()
        assert len(set(comm.all_gather_object(str(caught.value)))) == 1


def check_ranks_that_disagree(comm):
    names = "b" if comm.rank else "a"
    if comm.size == 1:
        assert DeviceMesh([0], names, comm).axis_names == ("a",)
        return
    with pytest.raises(ValueError, match="same on every rank"):
        DeviceMesh([0], names, comm)


def check_torch_forms(comm):
    n = comm.size
    assert init_device_mesh("cpu", (n,), mesh_dim_names=("dp",), comm=comm).axis_names == ("dp",)
    assert DeviceMesh("cuda", list(range(n)), mesh_dim_names=("dp",), comm=comm).shape == (n,)
    assert init_device_mesh(n, "dp", comm).shape == (n,)
    assert init_device_mesh((n, 1), comm=comm).axis_names == ("axis0", "axis1")


def check_axis_names_that_are_not_there(comm):
    mesh = init_device_mesh((comm.size, 1), ("dp", "tp"), comm)
    for names in ("pp", ("tp", "dp"), ("dp", "dp"), ()):
        with pytest.raises(KeyError, match="expected some of dp, tp"):
            mesh[names]
    for axis in ("pp", 2, None):
        with pytest.raises(ValueError, match="DeviceMesh: axis"):
            mesh.get_group(axis)


CHECKS = [
    check_questions,
    check_groups,
    check_parts,
    check_smaller_than_the_world,
    check_smaller_with_two_axes,
    check_refusals,
    check_ranks_that_disagree,
    check_torch_forms,
    check_axis_names_that_are_not_there,
]
