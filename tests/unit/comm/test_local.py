"""Ranks as threads: what differs from MPI, and how failures spread."""

import threading
import time

import ml_dtypes
import numpy as np
import pytest

from hpcdist.comm import CollectiveMismatchError, DistError, DistTimeoutError, ReduceOp
from hpcdist.comm.local import LocalCommunicator, run, solo


def test_results_come_in_rank_order_and_arguments_go_to_every_rank():
    assert run(3, lambda comm, a, b: (comm.rank, comm.size, a + b), 1, 2) == [(0, 3, 3), (1, 3, 3), (2, 3, 3)]


def test_solo_needs_no_threads():
    comm = solo(timeout_s=3, reproducible=True)
    before = threading.active_count()
    x = np.arange(4.0)
    for y in (comm.all_reduce(x), comm.all_gather(x), comm.reduce_scatter(x), comm.broadcast(x)):
        np.testing.assert_array_equal(y, x)
        assert not np.shares_memory(y, x)
    assert comm.all_to_all([x], [(4,)])[0].tolist() == x.tolist()
    assert comm.all_gather_object("a") == ["a"]
    assert threading.active_count() == before
    assert (comm.dup().timeout_s, comm.dup().reproducible) == (3, True)


def test_what_was_posted_may_be_changed():
    def main(comm):
        x = np.full(3, comm.rank + 1.0)
        work = comm.iall_reduce(x)
        x[:] = 100
        return work.wait().tolist()

    assert run(3, main) == [[6.0] * 3] * 3


def test_results_belong_to_one_rank():
    def main(comm):
        y = comm.broadcast(np.zeros(2))
        z = comm.all_reduce(np.zeros(2))
        y += comm.rank
        z += comm.rank
        return y.tolist(), z.tolist()

    assert run(2, main) == [([0, 0], [0, 0]), ([1, 1], [1, 1])]


def test_objects_are_copies():
    given = {"a": [1]}

    def main(comm):
        everyone = comm.all_gather_object(given)
        everyone[0]["a"].append(2)
        return everyone

    assert run(2, main) == [[{"a": [1, 2]}, {"a": [1]}]] * 2
    assert given == {"a": [1]}


def test_sums_are_folded_in_rank_order():
    """float32: (1e8 + 1) - 1e8 is 0, but (1e8 - 1e8) + 1 is 1."""

    def main(comm):
        return float(comm.all_reduce(np.array([1e8, 1, -1e8], np.float32)[comm.rank : comm.rank + 1])[0])

    assert run(3, main) == [0.0] * 3


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    """256 + 1 + 1 + 1 + 1 is 256 in bfloat16 step by step; 2048 likewise in float16."""
    big = 2048 if dtype is np.float16 else 256

    def main(comm):
        x = np.array([1 if comm.rank else big]).astype(dtype)
        total, mean = comm.all_reduce(x), comm.reduce_scatter(np.repeat(x, comm.size), op=ReduceOp.AVG)
        assert total.dtype == mean.dtype == x.dtype
        return float(total[0]), float(mean[0])

    assert run(5, main) == [(big + 4, float(np.array((big + 4) / 5).astype(dtype)))] * 5


def test_counts_of_collectives_and_bytes():
    def main(comm):
        comm.all_reduce(np.zeros(4, np.float32))
        comm.all_gather(np.zeros(2))
        comm.all_gather(np.zeros(1))
        comm.all_to_all([np.zeros(1), np.zeros(2)], [(comm.rank + 1,)] * 2)
        comm.barrier()
        return dict(comm.counts), dict(comm.payload_bytes)

    counts = {"all_reduce": 1, "all_gather": 2, "all_to_all": 1, "barrier": 1}
    assert run(2, main) == [(counts, {"all_reduce": 16, "all_gather": 24, "all_to_all": 24, "barrier": 0})] * 2


# ---- failures
def test_the_first_real_error_is_raised_and_names_its_rank():
    def main(comm):
        if comm.rank == 1:
            raise KeyError("mine")
        comm.barrier()

    start = time.monotonic()
    with pytest.raises(KeyError, match="mine") as caught:
        run(3, main)
    assert caught.value.__notes__ == ["on rank 1 of 3"]
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("wait", ["barrier", "recv", "all_gather_object", "split"])
def test_who_waits_for_a_failed_rank_is_told_which(wait):
    seen = {}

    def main(comm):
        if comm.rank == 2:
            raise RuntimeError("lost")
        try:
            {
                "barrier": comm.barrier,
                "recv": lambda: comm.recv(np.empty(1), (comm.rank + 1) % 3),
                "all_gather_object": lambda: comm.all_gather_object(1),
                "split": lambda: comm.split(0),
            }[wait]()
        except DistError as error:
            seen[comm.rank] = str(error)
            raise

    with pytest.raises(RuntimeError, match="lost"):
        run(3, main)
    assert sorted(seen) == [0, 1]
    assert all("rank 2 failed with RuntimeError: lost" in text for text in seen.values())


def test_a_rank_that_returned_does_not_come():
    with pytest.raises(DistError, match=r"barrier on rank 0 of 2.*: failed") as caught:
        run(2, lambda comm: comm.rank or comm.barrier())
    assert "rank 1 has ended" in str(caught.value)


def test_a_failure_does_not_undo_what_is_complete():
    def main(comm):
        work = comm.iall_reduce(np.ones(1))
        if comm.rank == 1:
            raise RuntimeError("lost")
        done.append(work.wait()[0])

    done = []
    with pytest.raises(RuntimeError, match="lost"):
        run(2, main)
    assert done == [2.0]


def test_a_late_rank_is_named():
    release = threading.Event()

    def main(comm):
        if comm.rank == 1:
            release.wait(10)
        try:
            comm.all_reduce(np.ones((2, 3), np.float32))
        finally:
            release.set()

    with pytest.raises(DistTimeoutError) as caught:
        run(3, main, timeout_s=0.2)
    text = str(caught.value)
    assert "all_reduce of float32 (2, 3) on rank 0 of 3 of group 'world': not done within 0.2 s" in text
    assert "rank 1 of the group to take part" in text
    assert __file__ in text


def test_wait_has_its_own_limit_and_can_be_repeated():
    def main(comm):
        work = comm.ibarrier() if comm.rank == 0 else None
        if work is not None:
            with pytest.raises(DistTimeoutError, match=r"within 0\.05 s"):
                work.wait(0.05)
            assert not work.test()
            with pytest.raises(RuntimeError, match="not done"):
                work.result()
        comm_there.wait(10)
        if work is None:
            comm.barrier()
        else:
            work.wait()
            assert work.test()
            assert work.result() is None

    comm_there = threading.Barrier(2)
    run(2, main)


MISMATCHES = {
    "verbs": lambda comm: comm.barrier() if comm.rank else comm.all_reduce(np.ones(2)),
    "shapes": lambda comm: comm.all_reduce(np.ones(2 + comm.rank)),
    "dtypes": lambda comm: comm.all_gather(np.ones(2, np.float32 if comm.rank else np.float64)),
    "ops": lambda comm: comm.all_reduce(np.ones(2), ReduceOp.MAX if comm.rank else ReduceOp.SUM),
    "roots": lambda comm: comm.broadcast(np.ones(2), root=comm.rank),
    "sizes": lambda comm: comm.reduce_scatter(np.ones(3), sizes=[1, 2] if comm.rank else [2, 1]),
    "extents": lambda comm: comm.all_gather(np.ones(2 + comm.rank)),
    "parts": lambda comm: comm.all_to_all([np.ones(1), np.ones(1)], [(1 + comm.rank,), (1,)]),
}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_calls_that_do_not_fit_raise_the_same_error_on_every_rank(kind):
    seen = {}

    def main(comm):
        with pytest.raises(CollectiveMismatchError) as caught:
            MISMATCHES[kind](comm)
        seen[comm.rank] = str(caught.value)
        comm.barrier()

    run(2, main)
    assert seen[0] == seen[1]


def test_a_message_that_does_not_fit():
    def main(comm):
        if comm.rank == 0:
            comm.send(np.ones(3), 1)
        else:
            comm.recv(np.empty(2), 0)

    with pytest.raises(CollectiveMismatchError, match="float64 \\(3,\\)"):
        run(2, main)


def test_messages_keep_their_order_whatever_the_order_of_waits():
    def main(comm):
        if comm.rank == 0:
            for value in range(4):
                comm.send(np.array([value]), 1, tag=value % 2)
            return None
        works = [comm.irecv(np.empty(1, int), 0, tag=tag) for tag in (0, 1, 0, 1)]
        return [int(work.wait()[0]) for work in reversed(works)]

    assert run(2, main)[1] == [3, 2, 1, 0]


def test_groups_of_groups_do_not_mix():
    def main(comm):
        half = comm.split(comm.rank % 2)
        first, second = half.dup(), half.dup()
        a = first.iall_gather(np.array([comm.rank]))
        b = second.iall_gather(np.array([-comm.rank]))
        assert isinstance(half.split_node(), LocalCommunicator)
        return b.wait().tolist(), a.wait().tolist()

    assert run(4, main) == [([0, -2], [0, 2]), ([-1, -3], [1, 3])] * 2


def test_nothing_is_kept_of_what_is_done():
    def main(comm):
        for _ in range(3):
            comm.all_reduce(np.ones(1))
        comm.barrier()
        return len(comm.group.meetings)

    assert run(2, main) == [0, 0]


# ---- messages from any rank
def test_any_source_waits_for_those_who_are_still_there():
    def main(comm):
        if comm.rank == 0:
            work = comm.irecv(np.zeros(1))
            while 1 not in comm.group.world.gone:
                time.sleep(0.001)
            return work.wait().tolist(), work.source
        if comm.rank == 2:
            time.sleep(0.05)
            comm.send(np.ones(1), 0)
        return None

    assert run(3, main)[0] == ([1.0], 2)


def test_any_source_fails_when_all_have_ended():
    def main(comm):
        if comm.rank == 0:
            comm.recv(np.zeros(1))

    with pytest.raises(DistError, match="has ended without taking part"):
        run(3, main)
