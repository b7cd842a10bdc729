"""What ranks save and read of a distributed tensor."""

import dtensor_suite as suite
import numpy as np
import pytest
from move_suite import INV, S0, P, R

from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run, solo
from hpcdist.dtensor import Chunk, DTensor, Partial, Shard, distribute_tensor

SIZES = (1, 2, 3, 4)


@pytest.mark.parametrize("size", SIZES)
def test_every_element_is_saved_once(size):
    run(size, suite.check_chunks_all)


def test_case_b19():
    run(4, suite.check_b19)


def test_heads_and_sections_are_several_boxes():
    def main(comm):
        mesh = init_device_mesh(3, "tp", comm)
        for shard in (Shard(0, unit=4), Shard(0, sections=(6, 6)), Shard(1, unit=(2, 1), sections=(4, 3))):
            suite.check_chunks(mesh, np.arange(84.0).reshape(12, 7), [shard], None)
        x = distribute_tensor(np.arange(12), mesh, [Shard(0, sections=(6, 6))])
        first = 2 * comm.rank
        assert [c[:2] for c in x.chunks()] == [((first,), (2,)), ((6 + first,), (2,))]

    run(3, main)


def test_copies_are_saved_by_the_first_that_holds_them():
    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        dp, tp = mesh.get_coordinate()
        x = distribute_tensor(np.arange(3), mesh, [R, S0])
        assert [c[:2] for c in x.chunks()] == ([] if dp else [((2 * tp,), (2 - tp,))])
        assert bool(distribute_tensor(np.arange(3), mesh, [INV, R]).chunks()) == (comm.rank == 0)
        empty = distribute_tensor(np.zeros((0, 3)), mesh, [INV, S0])
        assert empty.chunks() == []

    run(4, main)


def test_torch_s_name():
    with init_device_mesh(1, "tp", solo()):
        (chunk,) = DTensor.from_local(np.arange(3)).__create_chunk_list__()
    assert isinstance(chunk, Chunk)
    assert (chunk.offsets, chunk.sizes) == ((0,), (3,))


@pytest.mark.parametrize("op", ["sum", "max"])
def test_what_is_not_reduced_is_refused(op):
    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        x = DTensor.from_local(np.ones(2), mesh, [S0, Partial(op)])
        for what, call in (("chunks", x.chunks), ("fill", lambda: x.fill(lambda *_: np.zeros(2)))):
            suite.same_error(mesh, ValueError, f"{what}: it is not reduced", call)

    run(4, main)


def test_what_was_read_has_to_fit():
    with init_device_mesh(1, "tp", solo()):
        x = DTensor.from_local(np.ones((2, 3)))
        with pytest.raises(ValueError, match=r"fill: what was read at \(0, 0\)"):
            x.fill(lambda *_: np.zeros(3))
        np.testing.assert_array_equal(x.data, 1)
        assert P not in x.placements
