"""The barrier that names who is late."""

import time

import pytest

from hpcdist.comm import DistTimeoutError
from hpcdist.comm.local import run, solo
from hpcdist.comm.monitored import monitored_barrier


def barrier_of(comm, late, wait_s, limit_s):
    if comm.rank in late:
        time.sleep(wait_s)
    start = time.monotonic()
    try:
        monitored_barrier(comm, limit_s)
    except DistTimeoutError as error:
        return str(error), time.monotonic() - start
    return "", time.monotonic() - start


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_nobody_is_late(size):
    assert [text for text, _ in run(size, barrier_of, (), 0, 5)] == [""] * size


@pytest.mark.parametrize("first", [0, 1])
def test_one_waits_for_the_other_within_the_limit(first):
    said = run(2, barrier_of, (first,), 0.2, 5)
    assert [text for text, _ in said] == ["", ""]
    assert said[1 - first][1] > 0.15


def test_late_ranks_are_named_on_every_rank_the_late_ones_too():
    said = run(4, barrier_of, (1, 3), 0.6, 0.2)
    for rank, (text, _) in enumerate(said):
        assert f"monitored_barrier on rank {rank} of 4 of group 'world': ranks 1, 3 late" in text
        assert "not there within 0.2 s; called at " in text
        assert "test_monitored.py:" in text
    assert 0.15 < said[0][1] < 0.6


def test_rank_0_is_named_by_the_others():
    said = run(3, barrier_of, (0,), 0.6, 0.2)
    assert all("rank 0 late" in text for text, _ in said[1:])


def test_a_barrier_after_one_that_failed():
    def main(comm):
        return [bool(barrier_of(comm, late, 0.4, 0.2)[0]) for late in ((2,), ())]

    assert run(3, main) == [[True, False]] * 3


def test_a_limit_must_make_sense():
    with pytest.raises(ValueError, match=r"timeout_s[\s\S]*above 0"):
        monitored_barrier(solo(), 0)
