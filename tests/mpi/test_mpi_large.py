"""Case B03 for real: messages of 2^31 + 8 bytes, which one MPI-3 call cannot count. About 5 GB a rank."""

import numpy as np
import pytest

RANKS = (1, 2)
N = 2**31 + 8

pytestmark = pytest.mark.soak


@pytest.fixture
def x(world):
    world.timeout_s = 50
    x = np.zeros(N, np.uint8)
    x[-1], x[2**31 - 2 : 2**31 + 1] = world.rank + 3, (5, 6, 7)
    return x


def test_broadcast(world, x):
    got = world.broadcast(x, world.size - 1)
    assert got[-1] == world.size + 2
    assert got[2**31 - 2 : 2**31 + 1].tolist() == [5, 6, 7]


def test_all_reduce_in_place(world, x):
    world.all_reduce(x, out=x)
    assert x[-1] == sum(rank + 3 for rank in range(world.size))
    assert x[2**31 - 2 : 2**31 + 1].tolist() == [5 * world.size, 6 * world.size, 7 * world.size]


def test_gathering_and_exchanging_uneven_parts(world, x):
    """Displacements beyond the limit: the last rank's part begins there."""
    sizes = [N, *range(1, world.size)]
    got = world.all_gather(x[: sizes[world.rank]], sizes=sizes)
    assert got[N - 1] == 3
    assert got[N:].tolist() == [0] * sum(sizes[1:])
    del got
    parts = [x if dest == (world.rank + 1) % world.size else x[:0] for dest in range(world.size)]
    shapes = [(N if source == (world.rank - 1) % world.size else 0,) for source in range(world.size)]
    received = world.all_to_all(parts, shapes)
    assert received[world.rank - 1][-1] == (world.rank - 1) % world.size + 3


def test_objects(world, x):
    """Pickled beside, not within: the array is not copied into the pickle."""
    root = world.size - 1
    told = world.broadcast_object({"x": x} if world.rank == root else None, root)
    assert told["x"][-1] == root + 3
    assert told["x"][2**31 - 2 : 2**31 + 1].tolist() == [5, 6, 7]
