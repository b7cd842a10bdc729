import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.data import BatchPlan, assign, deal
from hpcdist.data.order import epoch_order

patient = settings(deadline=None)


@patient
@given(n=st.integers(1, 40), batch=st.integers(1, 25), micro=st.integers(1, 9), seed=st.integers(0, 3))
def test_every_epoch_holds_every_sample_once(n, batch, micro, seed):
    plan = BatchPlan(n, batch, micro_batch=micro, seed=seed)
    drawn, position = [], 0
    while position < 3 * n:
        pieces = plan.micro_batches(position)
        assert [len(piece) for piece in pieces[:-1]] == [micro] * (plan.num_micro - 1)
        assert sum(map(len, pieces)) == batch
        drawn += [int(i) for piece in pieces for i in piece]
        position += batch
    for epoch in range(3):
        assert sorted(drawn[epoch * n : (epoch + 1) * n]) == list(range(n))


@patient
@given(n=st.integers(1, 40), first=st.integers(1, 30), second=st.integers(1, 30), position=st.integers(0, 100))
def test_state_is_one_integer(n, first, second, position):
    """Two short steps see what one long step sees, from any position."""
    plan = BatchPlan(n, first, micro_batch=4)
    longer = BatchPlan(n, first + second, micro_batch=7)
    parts = [*plan.micro_batches(position), *BatchPlan(n, second, micro_batch=3).micro_batches(position + first)]
    np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(longer.micro_batches(position)))


def test_epochs_and_seeds_differ_and_the_order_is_frozen():
    plan = BatchPlan(1000, 1000, micro_batch=1000)
    first, second = plan.micro_batches(0)[0], plan.micro_batches(1000)[0]
    assert (first != second).mean() > 0.9
    assert (first != BatchPlan(1000, 1000, micro_batch=1000, seed=1).micro_batches(0)[0]).mean() > 0.9
    # checkpoints rely on these very numbers; Philox words sorted, recomputed here
    words = np.random.Philox(key=np.array([5, 2], np.uint64)).random_raw(6)
    assert epoch_order(6, 5, 2).tolist() == sorted(range(6), key=lambda i: words[i])
    assert epoch_order(8, 0, 0).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]


def test_unshuffled_runs_in_order_across_the_epochs_end():
    plan = BatchPlan(5, 4, micro_batch=3, shuffle=False)
    assert [piece.tolist() for piece in plan.micro_batches(4)] == [[4, 0, 1], [2]]


@patient
@given(micro=st.integers(1, 60), ranks=st.integers(1, 12))
def test_assign_spreads_evenly_without_gaps(micro, ranks):
    if micro < ranks:
        with pytest.raises(ValueError, match=f"got +{micro}"):
            assign(micro, ranks, 0)
        return
    runs = [assign(micro, ranks, rank) for rank in range(ranks)]
    assert [i for run in runs for i in run] == list(range(micro))
    sizes = [len(run) for run in runs]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_eight_over_three_and_b42s_thirty_two():
    assert [len(assign(8, 3, rank)) for rank in range(3)] == [3, 3, 2]
    assert [len(assign(32, 3, rank)) for rank in range(3)] == [11, 11, 10]


@patient
@given(batch=st.integers(1, 40), micro=st.integers(1, 40), ranks=st.integers(1, 12))
def test_too_few_micro_batches_names_the_largest_that_works(batch, micro, ranks):
    plan = BatchPlan(100, batch, micro_batch=micro)
    if plan.num_micro >= ranks:
        assert len(plan.assign(ranks, 0)) >= 1
        return
    with pytest.raises(ValueError, match="fewer than data-parallel ranks") as caught:
        plan.assign(ranks, 0)
    fitting = [m for m in range(1, batch + 1) if BatchPlan(100, batch, micro_batch=m).num_micro >= ranks]
    remedy = str(caught.value).splitlines()[-1]
    if fitting:
        assert remedy.endswith(f"set the micro-batch to {max(fitting)} or less")
    else:
        assert f"at least {ranks}" in remedy


@pytest.mark.parametrize("rank", [-1, 3])
def test_bad_rank(rank):
    with pytest.raises(ValueError, match=f"got +{rank}"):
        assign(8, 3, rank)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_bad_sizes(sizes):
    n, batch, micro = sizes
    with pytest.raises(ValueError, match="at least 1"):
        BatchPlan(n, batch, micro_batch=micro)


def test_negative_position():
    with pytest.raises(ValueError, match="-1"):
        BatchPlan(5, 2, micro_batch=1).micro_batches(-1)


@pytest.mark.parametrize("num_micro", range(1, 14))
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7])
def test_dealt_micro_batches_come_in_rounds(num_micro, num_ranks):
    hands = [deal(num_micro, num_ranks, rank) for rank in range(num_ranks)]
    assert len({len(hand) for hand in hands}) == 1
    rounds = [index for one in zip(*hands, strict=True) for index in one]
    assert rounds == [*range(num_micro), *[None] * (-num_micro % num_ranks)]
    with pytest.raises(ValueError, match="rank"):
        deal(num_micro, num_ranks, num_ranks)
