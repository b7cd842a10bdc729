"""The redistribution table on threads, 1 to 4 ranks."""

import ml_dtypes
import move_suite
import numpy as np
import pytest
from move_suite import AVG, CUT_MOVES, INV, PAIRS, SCALED_PAIRS, SHAPES, P, R

from hpcdist.autograd import Tensor
from hpcdist.autograd.pool import POOL
from hpcdist.comm.local import run, solo
from hpcdist.dtensor import Invariant, Partial, Replicate, Shard, local_shape, move, redistribute
from hpcdist.dtensor.move import imove

SIZES = (1, 2, 3, 4)
GATE_UP = Shard(0, sections=(4, 4))
DTYPES = [np.float32, np.float64, np.complex64, np.int64, np.float16, ml_dtypes.bfloat16]


def each_shape(comm, check, *args):
    for shape in SHAPES:
        check(comm, *args, shape)


def test_there_are_twenty_pairs():
    assert len(PAIRS) == 20


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("src", "dst"), PAIRS)
def test_values_layout_and_collectives(size, src, dst):
    def main(comm):
        for shape in SHAPES:
            move_suite.check_values(comm, src, dst, shape, np.float32)

    run(size, main)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("src", "dst"), PAIRS)
def test_dtypes(src, dst, dtype):
    run(3, move_suite.check_values, src, dst, (5, 7), dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("src", "dst"), PAIRS)
def test_the_table_is_its_own_transpose(size, src, dst):
    run(size, each_shape, move_suite.check_transpose, src, dst)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("src", "dst"), PAIRS)
def test_gradients_move_the_transposed_way(size, src, dst):
    run(size, each_shape, move_suite.check_gradient, src, dst)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("shape", "src", "dst"), CUT_MOVES)
def test_units_and_sections(size, shape, src, dst):
    run(size, move_suite.check_move, src, dst, shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("src", "dst"), [(GATE_UP, R), (P, GATE_UP), (GATE_UP, P), (GATE_UP, Shard(1))])
def test_dtypes_of_sections(src, dst, dtype):
    run(3, move_suite.check_values, src, dst, (8, 3), dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("src", "dst"), SCALED_PAIRS)
def test_mean_takes_part(size, src, dst):
    def main(comm):
        whole = move_suite.whole_array((5, 3), np.float64)
        y = move(move_suite.pieces(whole, src, size)[comm.rank], src, dst, comm, whole.shape)
        result = move_suite.joined(comm.all_gather_object(y), dst)
        np.testing.assert_allclose(result, whole, rtol=1e-14, atol=1e-13)
        move_suite.check_transpose(comm, src, dst, whole.shape)

    run(size, main)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dst", [Shard(0), Shard(1), Replicate(), Invariant()])
@pytest.mark.parametrize("op", ["max", "min"])
def test_extremum_sends_its_gradient_to_the_owner(size, dst, op):
    run(size, each_shape, move_suite.check_extremum, op, dst)


def test_a_maximum_that_is_nan_belongs_to_the_first_rank_that_holds_it():
    def main(comm):
        x = Tensor(np.array([[1.0, np.nan], [np.nan, np.nan]][comm.rank]), requires_grad=True)
        redistribute(x, Partial("max"), INV, comm, (2,)).backward(np.array([5.0, 7.0]))
        return x.grad.tolist()

    assert run(2, main) == [[0, 7], [5, 0]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dst", [Shard(0), Replicate(), Invariant()])
@pytest.mark.parametrize("op", ["product", "max", "min"])
def test_others_can_be_finished(size, op, dst):
    def main(comm):
        for dtype in (np.float32, np.int32):
            move_suite.check_finish(comm, op, dst, (5, 2), dtype)

    run(size, main)


@pytest.mark.parametrize("op", ["max", "min"])
def test_extrema_finished_in_sections(op):
    run(3, move_suite.check_extremum, op, GATE_UP, (8, 2))


@pytest.mark.parametrize("op", ["product", "max", "min"])
@pytest.mark.parametrize("dst", [Partial(), AVG])
def test_others_cannot_be_moved_on(op, dst):
    with pytest.raises(ValueError, match=f"Partial\\('{op}'\\) is not linear"):
        move(np.ones(2), Partial(op), dst, solo(), (2,))
    with pytest.raises(ValueError, match=f"Partial\\('{op}'\\) is not linear"):
        move(np.ones(2), INV, Partial(op), solo(), (2,))


def test_product_has_no_gradient():
    x = Tensor(np.ones(2), requires_grad=True)
    with pytest.raises(ValueError, match="product over ranks has no gradient"):
        redistribute(x, Partial("product"), INV, solo(), (2,))
    assert redistribute(x.detach(), Partial("product"), INV, solo(), (2,)).data.tolist() == [1, 1]


def test_gradient_once_through_replicate_and_invariant():
    """The loss of a replicated weight: I -> R (use) -> P -> I; the gradient is the sum over ranks, everywhere."""

    def main(comm):
        w = Tensor(np.array([2.0, 3.0]), requires_grad=True)
        used = redistribute(w, INV, R, comm, (2,))
        loss = redistribute((used * Tensor(np.array([1.0, 10.0]) * (comm.rank + 1))).sum(), P, INV, comm, ())
        loss.backward()
        return loss.item(), w.grad.tolist()

    assert run(3, main) == [(192.0, [6.0, 60.0])] * 3


def test_the_same_placement_is_the_same_tensor():
    x = Tensor(np.ones(3), requires_grad=True)
    assert redistribute(x, P, P, solo(), (3,)) is x


def test_strided_and_fortran_arrays():
    def main(comm):
        whole = np.asfortranarray(np.arange(60.0).reshape(6, 10))[::2, ::-1]
        x = move_suite.pieces(whole, Shard(0), 2)[comm.rank]
        y = move(x, Shard(0), Shard(1), comm, whole.shape)
        np.testing.assert_array_equal(y, move_suite.pieces(whole, Shard(1), 2)[comm.rank])
        np.testing.assert_array_equal(move(y, Shard(1), R, comm, whole.shape), whole)

    run(2, main)


def test_negative_dims():
    def main(comm):
        x = move(np.arange(10.0).reshape(2, 5), INV, Shard(-1), comm, (2, 5))
        return move(x, Shard(1), Shard(-2), comm, (2, 5)).tolist()

    assert run(2, main) == [[[0, 1, 2, 3, 4]], [[5, 6, 7, 8, 9]]]


@pytest.mark.parametrize("dst", [Shard(0), Shard(0, unit=2), Shard(0, sections=(2, 2))])
def test_slices_do_not_keep_the_whole_array_alive(dst):
    def main(comm):
        return move(np.ones((4, 4)), INV, dst, comm, (4, 4)).base

    assert run(2, main) == [None, None]


@pytest.mark.parametrize("cut", [Shard(0), Shard(0, unit=2), Shard(0, sections=(0, 4))])
def test_what_collectives_line_up_in_order_is_not_copied(cut):
    """The array goes into the collective as it is, and its work is what the caller gets."""

    def main(comm):
        brought = []
        comm.iall_gather = comm.ireduce_scatter = lambda x, *_, **__: brought.append(x) or brought
        part, whole = np.ones((2, 3)), np.ones((4, 3))
        assert imove(part, cut, R, comm, (4, 3)) is brought
        assert imove(whole, P, cut, comm, (4, 3)) is brought
        assert brought[0] is part
        assert brought[1] is whole

    run(2, main)


@pytest.mark.parametrize(
    ("size", "one", "other"),
    [
        (2, Shard(0), Shard(0, unit=2)),
        (4, Shard(0, unit=4), Shard(-2, unit=4)),
        (1, Shard(0), Shard(0, sections=(4, 4))),
    ],
)
def test_equal_cuts_are_free(size, one, other):
    def main(comm):
        x = move_suite.pieces(np.ones((8, 3)), one, size)[comm.rank]
        assert move(x, one, other, comm, (8, 3)) is x

    run(size, main)


@pytest.mark.parametrize(
    ("src", "dst"),
    [(Shard(0, unit=3), R), (R, Shard(0, unit=3)), (P, Shard(0, sections=(4, 3))), (Shard(1), Shard(0, unit=3))],
)
def test_units_and_sections_that_do_not_add_up(src, dst):
    with pytest.raises(ValueError, match=r"Shard\(0, .*\) of 8 elements"):
        move(np.ones((8, 3)), src, dst, solo(), (8, 3))


def test_non_blocking_moves_in_any_order():
    def main(comm):
        a, b = np.full(4, comm.rank + 1.0), np.arange(2.0) + comm.rank
        first = imove(a, P, Shard(0), comm, (4,))
        second = imove(b, Shard(0), R, comm, (4,))
        third = imove(a, P, AVG, comm, (4,))
        assert third.test()
        return second.wait().tolist(), first.wait().tolist(), third.wait().tolist()

    assert run(2, main) == [([0, 1, 1, 2], [3, 3], [2] * 4), ([0, 1, 1, 2], [3, 3], [4] * 4)]


@pytest.mark.parametrize("placement", [Shard(0), Partial(), Replicate()])
def test_a_local_array_of_the_wrong_shape(placement):
    def main(comm):
        move(np.ones((3, 3)), placement, INV, comm, (4, 2))

    with pytest.raises(ValueError, match=r"holds by .* of an array of \(4, 2\)") as caught:
        run(2, main)
    assert "got      shape (3, 3)" in str(caught.value)


def test_a_dimension_the_array_does_not_have():
    with pytest.raises(ValueError, match="Shard: dim"):
        move(np.ones((3, 3)), INV, Shard(2), solo(), (3, 3))


@pytest.mark.parametrize(("src", "dst"), [(Shard(0), R), (Shard(0), Shard(1)), (P, R), (P, Shard(1))])
def test_what_arrives_lies_in_memory_that_is_used_again(src, dst):
    def main(comm):
        x = np.ones(local_shape((256, 256), src, comm.size, comm.rank), np.float32)
        comm.barrier()
        if comm.rank == 0:
            POOL.release()
        before = comm.broadcast_object(POOL.held_bytes)
        moved = move(x, src, dst, comm, (256, 256))
        comm.barrier()
        assert POOL.held_bytes >= before + comm.size * moved.nbytes

    run(2, main)
