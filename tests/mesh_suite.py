"""Meshes: bodies of tests that take a communicator of 1 to 4 ranks."""

import concurrent.futures
import itertools

import numpy as np
import pytest

import hpcdist.comm as dist
from hpcdist.comm import DeviceMesh, DistError, init_device_mesh
from hpcdist.comm.mesh import current_mesh

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


def check_case_b09(comm):
    """Ranks 0 and 2: sum 4, mean 2, a root by either number; others are refused, and the world goes on."""
    if comm.size < 3:
        return
    mesh = DeviceMesh([0, 2], "dp", comm)
    value = np.array([comm.rank + 1.0])
    assert mesh.size() == 2
    if comm.rank in (0, 2):
        group = mesh.get_group()
        assert mesh.get_coordinate() == (comm.rank // 2,)
        for op, expected in (("sum", 4), ("avg", 2)):
            result = value.copy()
            dist.all_reduce(result, op, group)
            assert result.tolist() == [expected]
        for root in ({"src": 2}, {"group_src": 1}):
            result = value.copy()
            dist.broadcast(result, group=group, **root)
            assert result.tolist() == [3]
    else:
        assert mesh.get_coordinate() is None
        for ask in (mesh.get_group, mesh.get_mesh_group):
            with pytest.raises(DistError, match="this rank is not in the mesh"):
                ask()
    assert comm.all_reduce(value).tolist() == [comm.size * (comm.size + 1) / 2]


def check_mesh_groups(comm):
    """The group of all ranks of a mesh or of a part: row-major, formed once, by its ranks only."""
    for mesh, ranks in meshes(comm):
        for count in range(1, mesh.ndim + 1):
            for axes in itertools.combinations(range(mesh.ndim), count):
                part = mesh[tuple(mesh.axis_names[axis] for axis in axes)]
                group = part.get_mesh_group()
                expected = row(ranks, mesh.get_coordinate(), axes).ravel()
                assert group.all_gather(np.array([comm.rank])).tolist() == expected.tolist()
                assert mesh[part.axis_names].get_mesh_group() is group
                assert (group is part.get_all_groups()[0]) == (count == 1)


def check_mesh_group_of_one_part(comm):
    """Ranks of one part form its group; those of the other do not come."""
    if comm.size < 4:
        return
    part = init_device_mesh((2, 2, 1), ("pp", "dp", "tp"), comm)["dp", "tp"]
    if comm.rank < 2:
        assert part.get_mesh_group().all_reduce(np.array([comm.rank])).tolist() == [1]
    comm.barrier()


def check_from_group(comm):
    """Meshes of groups that are there: the same answers, and no communication to make them."""
    for mesh, ranks in meshes(comm):
        members = np.take(comm.members, ranks)
        made = DeviceMesh.from_group(mesh.get_all_groups(), "cpu", members, mesh_dim_names=mesh.axis_names, comm=comm)
        assert made.axis_names == mesh.axis_names
        assert made.get_coordinate() == mesh.get_coordinate()
        assert made.get_all_groups() == mesh.get_all_groups()
        np.testing.assert_array_equal(made.ranks, ranks)
        assert made.get_mesh_group().all_gather(np.array([comm.rank])).tolist() == ranks.ravel().tolist()
        group = mesh.get_all_groups()[-1]
        alone = DeviceMesh.from_group(group, mesh_dim_names="x")
        assert (alone.axis_names, alone.shape, alone.get_local_rank()) == (("x",), (group.size,), group.rank)
        assert alone.get_group() is alone.get_mesh_group() is group


def check_groups_that_are_no_rows(comm):
    mesh = init_device_mesh((comm.size, 1), ("dp", "tp"), comm)
    ranks = np.reshape(comm.members, (comm.size, 1))
    for groups, members, match in [
        (mesh.get_all_groups()[::-1], ranks, "members of groups" if comm.size > 1 else None),
        (mesh.get_all_groups()[:1], ranks, "members of groups"),
        (mesh.get_all_groups(), ranks + 1000, "global ranks of the communicator"),
    ]:
        if match:
            with pytest.raises(ValueError, match=match):
                DeviceMesh.from_group(groups, mesh=members, comm=comm)
    with pytest.raises(TypeError, match="mesh"):
        DeviceMesh.from_group(mesh.get_all_groups(), comm=comm)
    for groups in ([None, "x"], []):
        with pytest.raises(TypeError, match="a communicator"):
            DeviceMesh.from_group(groups, mesh=ranks, comm=comm)


def check_current_mesh(comm):
    """A with block makes a mesh the current one, of this thread; blocks nest, and errors leave them."""
    mesh = init_device_mesh((comm.size, 1), ("dp", "tp"), comm)
    assert current_mesh() is None
    with mesh as entered:
        assert entered is mesh is current_mesh()
        with mesh["tp"] as inner:
            assert current_mesh() is inner
            with mesh:
                assert current_mesh() is mesh
            assert current_mesh() is inner
        assert current_mesh() is mesh
        assert on_a_new_thread(current_mesh) is None
    assert current_mesh() is None
    with pytest.raises(ZeroDivisionError), mesh:
        raise ZeroDivisionError
    assert current_mesh() is None


def on_a_new_thread(ask):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()


def check_unflatten(comm):
    """An axis becomes several, the last one fastest; others keep their groups."""
    for mesh, ranks in meshes(comm):
        axis, extent = mesh.ndim - 1, mesh.shape[-1]
        for number, sizes in enumerate(CUTS[extent]):
            names = tuple(f"{name}{number}" for name in "abc"[: len(sizes)])
            cut = mesh.unflatten(axis, sizes, names)
            expected = ranks.reshape((*ranks.shape[:-1], *sizes))
            here = tuple(int(i) for i in np.argwhere(expected == comm.rank)[0])
            assert cut.axis_names == (*mesh.axis_names[:-1], *names)
            assert cut.get_coordinate() == here
            np.testing.assert_array_equal(cut.ranks, expected)
            assert cut.get_all_groups()[:axis] == mesh.get_all_groups()[:axis]
            for index, group in enumerate(cut.get_all_groups()):
                gathered = group.all_gather(np.array([comm.rank])).tolist()
                assert gathered == row(expected, here, [index]).tolist()
            assert cut.get_mesh_group().all_gather(np.array([comm.rank])).tolist() == ranks.ravel().tolist()
            assert [mesh[name].get_group() for name in names] == list(cut.get_all_groups()[axis:])


CUTS = {1: [(1,), (1, 1)], 2: [(2, 1), (1, 2)], 3: [(1, 3)], 4: [(2, 2), (2, 1, 2)]}


def check_unflatten_refuses(comm):
    mesh = init_device_mesh((comm.size, 1), ("dp", "tp"), comm)
    for sizes, names, match in [
        ((comm.size, 2), ("a", "b"), "product is"),
        ((comm.size + 1 - comm.rank, 0), ("a", "b"), "product is"),
        ((comm.size, 1), ("a",), "names, one an axis"),
        ((comm.size, 1), ("a", "tp"), "unflatten: name"),
    ]:
        with pytest.raises(ValueError, match=match) as caught:
            mesh.unflatten("dp", sizes, names)
        assert len(set(comm.all_gather_object(str(caught.value)))) == 1
    if comm.size > 1:
        sizes = (comm.size, 1) if comm.rank else (1, comm.size)
        with pytest.raises(ValueError, match="same on every rank"):
            mesh.unflatten("dp", sizes, ("a", "b"))


def check_concatenate(comm):
    """Parts of one mesh side by side, in any order: the ranks that are reached along their axes."""
    for mesh, ranks in meshes(comm):
        here = mesh.get_coordinate()
        for axes in itertools.permutations(range(mesh.ndim)):
            joined = DeviceMesh.concatenate([mesh[mesh.axis_names[axis]] for axis in axes])
            np.testing.assert_array_equal(joined.ranks, ranks.transpose(axes))
            assert joined.get_coordinate() == tuple(here[axis] for axis in axes)
            assert joined.get_all_groups() == tuple(mesh.get_group(axis) for axis in axes)
            assert (joined == mesh) == (joined.axis_names == mesh.axis_names)
            gathered = joined.get_mesh_group().all_gather(np.array([comm.rank])).tolist()
            assert gathered == ranks.transpose(axes).ravel().tolist()
        if mesh.ndim == 3:
            flat = mesh["dp", "tp"].flatten("flat")
            joined = DeviceMesh.concatenate([flat, mesh["pp"]])
            np.testing.assert_array_equal(joined.ranks, ranks.reshape(ranks.shape[0], -1).T)
        with pytest.raises(ValueError, match="parts of one mesh"):
            DeviceMesh.concatenate([mesh, init_device_mesh((comm.size,), "other", comm)])
    with pytest.raises(ValueError, match="parts of one mesh"):
        DeviceMesh.concatenate([])


def check_axes_that_overlap(comm):
    if comm.size < 4:
        return
    mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
    flat = mesh.flatten("flat")
    for parts in ([mesh["dp"], flat], [flat, mesh["tp"]], [mesh["tp"], mesh["tp"]]):
        with pytest.raises(ValueError, match="none runs along another"):
            DeviceMesh.concatenate(parts)
    cut = flat.unflatten("flat", (2, 2), ("outer", "inner"))
    with pytest.raises(ValueError, match="none runs along another"):
        DeviceMesh.concatenate([cut["outer"], mesh["dp"]])
    crossed = DeviceMesh.concatenate([cut["inner"], mesh["dp"]])
    assert crossed.ranks.tolist() == [[0, 2], [1, 3]]


def check_smaller_with_two_axes(comm):
    half = max(comm.size // 2, 1)
    mesh = init_device_mesh((half, 1), ("dp", "tp"), comm)
    assert (mesh.get_coordinate() is None) == (comm.rank >= half)
    assert mesh["tp"].size() == 1
    turned = DeviceMesh.concatenate([mesh["tp"], mesh["dp"]])
    assert turned.shape == (1, half)
    assert (turned.get_coordinate() is None) == (comm.rank >= half)
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
        (ValueError, "device", lambda: DeviceMesh([0], device_type="tpu", comm=comm)),
        (TypeError, "given once", lambda: DeviceMesh([0], mesh=[0], comm=comm)),
        (TypeError, "given once", lambda: init_device_mesh("cpu", comm=comm)),
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
    assert init_device_mesh(device_type="cpu", mesh_shape=(n,), mesh_dim_names=("dp",), comm=comm).shape == (n,)
    assert init_device_mesh("cuda", mesh_shape=(n,), comm=comm).shape == (n,)
    assert DeviceMesh(device_type="cpu", mesh=list(range(n)), comm=comm).size() == n
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
    check_case_b09,
    check_mesh_groups,
    check_mesh_group_of_one_part,
    check_from_group,
    check_groups_that_are_no_rows,
    check_current_mesh,
    check_unflatten,
    check_unflatten_refuses,
    check_concatenate,
    check_axes_that_overlap,
    check_smaller_with_two_axes,
    check_refusals,
    check_ranks_that_disagree,
    check_torch_forms,
    check_axis_names_that_are_not_there,
]
