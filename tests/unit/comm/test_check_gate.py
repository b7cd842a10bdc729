"""The gate, with threads as ranks: all pass or none does."""

import mmap
import random
import threading

import numpy as np
import pytest

from hpcdist.comm import CollectiveMismatchError, DistTimeoutError
from hpcdist.comm.mpi.gate import Gate, gate_bytes
from hpcdist.comm.operation import Operation

SITE = "job.py:7"


def operation(rank, number, *, size=3, shape=(2,), verb="all_reduce", blocking=True):
    place = (rank, size, "world", number)
    return Operation(verb, *place, shape, np.dtype("f8"), (shape,), "all", SITE, blocking)


def ranks(size, body, ticks=None):
    """Call ``body(rank, gate)`` in a thread a rank; return what each returned or raised."""
    memory, results = mmap.mmap(-1, gate_bytes(size)), {}

    def main(rank):
        gate = Gate(memory, rank, size, (lambda: None) if ticks is None else lambda: ticks.append(rank))
        try:
            results[rank] = body(rank, gate)
        except Exception as e:
            results[rank] = e

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_same_calls_pass(size):
    def body(rank, gate):
        for number in range(1, 200):
            gate.enter(operation(rank, number, size=size), 10)
        return "passed"

    assert ranks(size, body) == ["passed"] * size


def test_nobody_passes_before_the_last_has_come():
    came = []

    def body(rank, gate):
        for number in range(1, 100):
            came.append((number, rank))
            gate.enter(operation(rank, number), 10)
            seen = came[:]
            assert {(number, other) for other in range(3)} <= set(seen)

    assert ranks(3, body) == [None] * 3


def test_other_calls_are_told_to_all():
    def body(rank, gate):
        gate.enter(operation(rank, 1), 10)
        with pytest.raises(CollectiveMismatchError) as caught:
            gate.enter(operation(rank, 2, shape=(5,) if rank == 1 else (2,)), 10)
        gate.enter(operation(rank, 3), 10)
        return str(caught.value)

    texts = ranks(3, body)
    assert len(set(texts)) == 1
    for rank, shape in enumerate(("(2,)", "(5,)", "(2,)")):
        assert f"rank {rank}: all_reduce({shape}), call 2 of group 'world', at {SITE}" in texts[0]


def test_a_place_further_on_is_another_call():
    def body(rank, gate):
        gate.enter(operation(rank, 3 if rank else 2), 10)

    for rank, error in enumerate(ranks(3, body)):
        assert isinstance(error, CollectiveMismatchError)
        assert "rank 0: all_reduce((2,)), call 2 of" in str(error), rank
        assert "rank 2: all_reduce((2,)), call 3 of" in str(error), rank


def test_a_posted_call_will_not_come():
    def body(rank, gate):
        if rank == 0:
            gate.post(1)
            gate.post(2)
        else:
            gate.enter(operation(rank, 1), 10)

    _, *errors = ranks(3, body)
    for error in errors:
        assert isinstance(error, CollectiveMismatchError)
        assert "rank 0 posted it without blocking" in str(error)


def test_the_rank_that_posted_finds_those_at_the_gate():
    came = threading.Barrier(2)

    def body(rank, gate):
        if rank == 0:
            gate.post(1)
            came.wait()
            gate.check_posted(operation(0, 2, size=2, blocking=False))
            gate.check_posted(operation(0, 1, size=2, blocking=False))
        try:
            gate.enter(operation(rank, 1, size=2), 10)
        finally:
            came.wait()

    first, second = ranks(2, body)
    assert "rank 1 called it with blocking" in str(first)
    assert "rank 0 posted it without blocking" in str(second)


def test_posted_calls_of_a_rank_that_is_ahead_are_not_mistaken():
    def body(rank, gate):
        for number in range(1, 100, 4):
            gate.enter(operation(rank, number), 10)
            for later in (1, 2, 3):
                gate.post(number + later)

    assert ranks(3, body) == [None] * 3


def test_time_out_names_the_late_rank_which_learns_of_it():
    late = threading.Barrier(3)

    def body(rank, gate):
        if rank == 2:
            late.wait()
        try:
            gate.enter(operation(rank, 1), 0.1)
        finally:
            if rank < 2:
                late.wait()

    first, second, third = ranks(3, body)
    for error in (first, second):
        assert isinstance(error, DistTimeoutError)
        assert "not done within 0.1 s" in str(error)
        assert "rank 2 of the group to take part" in str(error)
    assert isinstance(third, DistTimeoutError)
    assert "too late" in str(third)
    assert "rank 0, 1 has given up waiting" in str(third)


def test_rank_that_gives_up_elsewhere_is_not_waited_for():
    def body(rank, gate):
        if rank == 0:
            gate.give_up()
        else:
            with pytest.raises(DistTimeoutError, match="rank 0 has given up"):
                gate.enter(operation(rank, 1), 10)
        gate.enter(operation(rank, 2), 10)

    assert ranks(3, body) == [None] * 3


def test_an_interrupt_in_the_wait_lets_the_others_go():
    def interrupt():
        raise KeyboardInterrupt

    hurry = threading.Barrier(3)

    def body(rank, gate):
        if rank:
            hurry.wait()
            gate.enter(operation(rank, 1), 10)
        gate._tick = interrupt
        with pytest.raises(KeyboardInterrupt):
            gate.enter(operation(rank, 1), 10)
        hurry.wait()
        return "interrupted"

    first, *others = ranks(3, body)
    assert first == "interrupted"
    assert all(isinstance(error, DistTimeoutError) for error in others)


def test_all_pass_or_none_whatever_the_limits(repeats):
    """Limits run out just when others come; those who pass are always all."""
    rounds = 60 * repeats
    draw = random.Random(3)
    pauses = [[draw.uniform(0, 3e-3) for _ in range(3)] for _ in range(rounds)]
    limits = [[draw.uniform(0, 3e-3) for _ in range(3)] for _ in range(rounds)]
    passed = [[False] * 3 for _ in range(rounds)]
    start = [threading.Barrier(3) for _ in range(rounds)]

    def body(rank, gate):
        for number in range(rounds):
            start[number].wait()
            threading.Event().wait(pauses[number][rank])
            try:
                gate.enter(operation(rank, number + 1), limits[number][rank])
                passed[number][rank] = True
            except DistTimeoutError:
                pass

    assert ranks(3, body) == [None] * 3
    assert all(len(set(who)) == 1 for who in passed)
    assert 0 < sum(who[0] for who in passed) < rounds


def test_mpi_works_while_a_rank_waits():
    ticks = []

    def body(rank, gate):
        if rank == 1:
            threading.Event().wait(0.02)
        gate.enter(operation(rank, 1, size=2), 10)

    assert ranks(2, body, ticks) == [None] * 2
    assert 0 in ticks
