"""The dry communicator: groups and results of the right shapes, and what is written down, against thread ranks."""

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor
from hpcdist.comm import DeviceMesh, DryCommunicator, ReduceOp, init_device_mesh, local
from hpcdist.dtensor import Invariant, Partial, Replicate, Shard, local_shape, move
from hpcdist.parallel import replicate

SIZES = [1, 2, 3, 4]


def every_verb(comm):
    """Call every verb; return shapes and dtypes of the results."""
    size, rank = comm.size, comm.rank
    x = np.arange(size * 3 * 2, dtype=np.float32).reshape(size * 3, 2)
    sizes = [i + 1 for i in range(size)]
    results = [
        comm.all_reduce(x),
        comm.all_reduce(x, ReduceOp.AVG, out=x.copy()),
        comm.all_gather(x, 1),
        comm.all_gather(x[: sizes[rank]], sizes=sizes),
        comm.reduce_scatter(x),
        comm.reduce_scatter(np.ones((2, sum(sizes))), 1, sizes=sizes),
        *comm.all_to_all([x[: i + 1] for i in range(size)], [(rank + 1, 2)] * size),
        comm.broadcast(x[:, ::-1], size - 1),
        np.array(comm.all_gather_object("same")),
    ]
    comm.barrier()
    return [(r.shape, r.dtype) for r in results]


@pytest.mark.parametrize("size", SIZES)
def test_results_have_the_shapes_of_real_ones_and_counts_agree(size):
    def main(comm):
        return every_verb(comm), comm.counts, comm.payload_bytes

    for rank, (shapes, counts, payload) in enumerate(local.run(size, main)):
        dry = DryCommunicator(size, rank)
        assert every_verb(dry) == shapes
        assert dry.counts == counts
        for verb in set(counts) - {"all_gather_object"}:
            assert sum(call.payload_bytes for call in dry.calls if call.verb == verb) == payload[verb], verb


def test_values_are_the_callers_and_zeros():
    comm = DryCommunicator(3, 1)
    x = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(comm.all_reduce(x), x)
    np.testing.assert_array_equal(comm.reduce_scatter(x), x[1:2])
    np.testing.assert_array_equal(comm.all_gather(x[:1]), [[0, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(comm.all_to_all([x, x + 1, x], [(1,), (3, 2), (2,)])[1], x + 1)
    out = np.full(2, 7.0)
    assert comm.recv(out, 0) is out
    assert out.tolist() == [7, 7]
    assert comm.all_reduce(x, out=x) is x
    assert not np.shares_memory(comm.broadcast(x), x)


def test_bytes_by_theory():
    comm = DryCommunicator(4, 2)
    x = np.zeros((8, 10))  # 640 bytes
    comm.all_reduce(x)
    comm.all_gather(x)
    comm.reduce_scatter(x)
    comm.all_to_all(np.split(x, 4), [(2, 10)] * 4)
    comm.broadcast(x)
    comm.send(x, 1)
    comm.recv(x, 1)
    comm.barrier()
    sent = {call.verb: (call.payload_bytes, call.sent_bytes) for call in comm.calls}
    assert sent == {
        "all_reduce": (640, 960),
        "all_gather": (640, 1920),
        "reduce_scatter": (640, 480),
        "all_to_all": (640, 480),
        "broadcast": (640, 480),
        "send": (640, 640),
        "recv": (640, 0),
        "barrier": (0, 0),
    }
    assert (comm.calls[0].shape, comm.calls[0].dtype, comm.calls[0].size) == ((8, 10), "float64", 4)
    assert all(call.sent_bytes == 0 for call in alone().calls)


def alone():
    comm = DryCommunicator(1)
    every_verb(comm)
    return comm


@pytest.mark.parametrize("rank", [0, 5, 23])
def test_a_mesh_has_the_groups_of_a_real_one(rank):
    dry = DryCommunicator(24, rank)
    mesh = init_device_mesh((2, 3, 4), ("pp", "dp", "tp"), dry)
    here = np.unravel_index(rank, (2, 3, 4))
    assert mesh.get_coordinate() == here
    assert [(g.name, g.rank, g.size) for g in mesh.get_all_groups()] == [
        (name, place, n) for name, place, n in zip(("pp", "dp", "tp"), here, (2, 3, 4), strict=True)
    ]
    flat = mesh["dp", "tp"].flatten("all").get_group()
    assert (flat.size, flat.rank) == (12, rank % 12)
    flat.barrier()
    assert (dry.calls[-1].verb, dry.calls[-1].group, dry.calls[-1].size) == ("barrier", "all", 12)
    assert DeviceMesh([0, 1], "x", DryCommunicator(24, rank)).get_coordinate() == ((rank,) if rank < 2 else None)


def test_a_mesh_as_large_as_one_likes():
    mesh = init_device_mesh((256, 128), ("dp", "tp"), DryCommunicator(32768, 777))
    assert [g.size for g in mesh.get_all_groups()] == [256, 128]


def test_groups():
    comm = DryCommunicator(10, 5, node_size=4)
    node = comm.split_node()
    assert (node.size, node.rank, node.calls is comm.calls) == (4, 1, True)
    last = DryCommunicator(10, 9, node_size=4).split_node()
    assert (last.size, last.rank) == (2, 1)
    odd = comm.split_by(lambda rank: (rank % 2, -rank))
    assert (odd.size, odd.rank) == (5, 2)
    assert (odd.split_node().size, odd.split_node().rank) == (2, 1)  # members 5 and 7, in falling order
    assert comm.split_by(lambda rank: (None if rank == 5 else 0, 0)) is None
    assert comm.split(None) is None
    twin = comm.dup()
    assert (twin.size, twin.rank) == (10, 5)
    assert DryCommunicator(3).split_node().size == 3


@pytest.mark.parametrize("size", SIZES)
def test_split_by_is_split_on_ranks_that_are_there(size):
    def main(comm):
        group = comm.split_by(lambda rank: (rank % 2, -rank))
        return group.rank, group.size

    real = local.run(size, main)
    assert [main(DryCommunicator(size, rank)) for rank in range(size)] == real


@pytest.mark.parametrize("src", [Shard(0), Shard(1), Partial(), Replicate(), Invariant()])
@pytest.mark.parametrize("dst", [Shard(0), Shard(1), Partial(), Replicate(), Invariant()])
def test_moves_give_the_local_shape(src, dst):
    for rank in range(3):
        comm = DryCommunicator(3, rank)
        x = np.ones(local_shape((5, 7), src, 3, rank))
        assert move(x, src, dst, comm, (5, 7)).shape == local_shape((5, 7), dst, 3, rank)


def test_replicate_reduces_every_gradient_once():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    comm = DryCommunicator(1000, 3)
    replicate(model, init_device_mesh((10, 100), ("pp", "dp"), comm)["dp"])
    del comm.calls[:]
    model(Tensor(np.ones((2, 6), np.float32))).sum().backward()
    assert {(call.verb, call.size) for call in comm.calls} == {("all_reduce", 100)}
    size = sum(p.data.nbytes + 4 for p in model.parameters())  # and whether a rank has it
    assert sum(call.payload_bytes for call in comm.calls) == size
    assert sum(call.sent_bytes for call in comm.calls) == size * 2 * 99 // 100


def test_errors_of_one_are_errors_of_all():
    comm = DryCommunicator(3)
    with pytest.raises(KeyError, match="marker"), comm.agreed():
        raise KeyError("marker")
    comm.agree(None)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda c: c.all_reduce([1]), TypeError, "an array"),
        (lambda c: c.all_reduce(np.ones(2, int), "avg"), ValueError, "AVG|avg"),
        (lambda c: c.all_gather(np.ones(2), sizes=[1, 1, 1]), ValueError, "as sizes says"),
        (lambda c: c.reduce_scatter(np.ones(4)), ValueError, "does not divide"),
        (lambda c: c.all_to_all([np.ones(1)] * 3, [(2,)] * 3), ValueError, "itself"),
        (lambda c: c.broadcast(np.ones(1), 3), ValueError, "root"),
        (lambda c: c.send(np.ones(1), -1), ValueError, "dest"),
        (lambda c: c.split(-1), ValueError, "color"),
        (lambda _: DryCommunicator(2, 2), ValueError, "rank 2 of size 2"),
        (lambda _: DryCommunicator(2, node_size=0), ValueError, "node_size 0"),
    ],
)
def test_bad_arguments_are_refused_as_by_the_real_ones(call, error, says):
    with pytest.raises(error, match=says):
        call(DryCommunicator(3))
