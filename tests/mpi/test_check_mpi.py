"""Calls of different ranks that do not fit together: an error on every rank, soon, that says who called what; B04."""

import functools
import logging
import re
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

from hpcdist import config
from hpcdist.comm import CollectiveMismatchError, DistTimeoutError, ReduceOp, init
from hpcdist.comm.mpi import check, shared
from hpcdist.comm.mpi.communicator import MpiCommunicator
from hpcdist.errors import DistError

RANKS = (2, 3, 4)
LIMIT_S = 10

WAYS = {
    "checked": {"check": True, "direct": False},
    "gate": {"check": False, "direct": True},
    "gate, checked": {"check": True, "direct": True},
    "first calls": {"check": False, "direct": False},
}


def adopt(**options):
    return MpiCommunicator.adopt(MPI.COMM_WORLD, timeout_s=20, **options)


@pytest.fixture(params=WAYS)
def comm(request, world):
    yield adopt(**WAYS[request.param])
    assert world.all_reduce(np.array([1])) == world.size


@pytest.fixture
def hasty(monkeypatch):
    """Ranks that wait become impatient soon."""
    monkeypatch.setattr(config, "environment", lambda: config.Environment(late_s=0.4))


def refused(call, error=CollectiveMismatchError):
    """Return what the error says; it has to come within the limit."""
    start = time.monotonic()
    with pytest.raises(error) as caught:
        call()
    assert time.monotonic() - start < LIMIT_S
    return str(caught.value)


def parts(comm, rows):
    return [np.ones((rows, 2), "f4")] * comm.size


# each: what the last rank calls, what the others call, and what the table says of both
MISMATCHES = {
    "B04 a, dtype": (
        lambda c: c.iall_reduce(np.ones(6)),
        lambda c: c.iall_reduce(np.ones(6, "f4")),
        "all_reduce((6,), float64, sum)",
        "all_reduce((6,), float32, sum)",
    ),
    "B04 b, shape": (
        lambda c: c.iall_reduce(np.ones(5, "f4")),
        lambda c: c.iall_reduce(np.ones(6, "f4")),
        "all_reduce((5,), float32, sum)",
        "all_reduce((6,), float32, sum)",
    ),
    "B04 c, shape of as many": (
        lambda c: c.iall_reduce(np.ones((3, 2))),
        lambda c: c.iall_reduce(np.ones((2, 3))),
        "all_reduce((3, 2), float64, sum)",
        "all_reduce((2, 3), float64, sum)",
    ),
    "B04 d, op": (
        lambda c: c.iall_reduce(np.ones(6), ReduceOp.MAX),
        lambda c: c.iall_reduce(np.ones(6)),
        "all_reduce((6,), float64, max)",
        "all_reduce((6,), float64, sum)",
    ),
    "B04 e, root": (
        lambda c: c.ibroadcast(np.ones(6), 1),
        lambda c: c.ibroadcast(np.ones(6), 0),
        "broadcast((6,), float64, 1)",
        "broadcast((6,), float64, 0)",
    ),
    "verb": (
        lambda c: c.ibarrier(),
        lambda c: c.iall_reduce(np.ones(3)),
        "barrier()",
        "all_reduce((3,), float64, sum)",
    ),
    "trailing dims": (
        lambda c: c.iall_gather(np.ones((2, 4))),
        lambda c: c.iall_gather(np.ones((2, 3))),
        "all_gather(0, (4,), float64",
        "all_gather(0, (3,), float64",
    ),
    "sizes": (
        lambda c: c.ireduce_scatter(np.ones(c.size), sizes=[0] * (c.size - 1) + [c.size]),
        lambda c: c.ireduce_scatter(np.ones(c.size)),
        "reduce_scatter(",
        "reduce_scatter(",
    ),
    "reduce's root": (
        lambda c: c.ireduce(np.ones(2), 1),
        lambda c: c.ireduce(np.ones(2), 0),
        "reduce((2,), float64, sum, 1)",
        "reduce((2,), float64, sum, 0)",
    ),
}
SPLITS = {
    "all_to_all": (
        lambda c: c.iall_to_all(parts(c, 3), [(3, 2)] * c.size),
        lambda c: c.iall_to_all(parts(c, 2), [(2, 2)] * c.size),
        "all_to_all(float32), call 2 of group 'world', brings float32 (3, 2), sends [24, 24",
        "all_to_all(float32), call 2 of group 'world', brings float32 (2, 2), sends [16, 16",
    ),
    "gather": (
        lambda c: c.igather(np.ones(3)),
        lambda c: c.igather(np.ones(2)),
        "brings float64 (3,), sends [24, 0",
        "brings float64 (2,), sends [16, 0",
    ),
    "scatter": (
        lambda c: c.iscatter(None, np.ones(3)),
        lambda c: c.iscatter([np.ones(2)] * c.size if c.rank == 0 else None, np.ones(2)),
        "brings float64 (3,)",
        "brings float64 (2,)",
    ),
}


def blocking(call):
    """Return the same call of the blocking form."""

    class Blocking:
        def __init__(self, comm):
            self._comm, self.rank, self.size = comm, comm.rank, comm.size

        def __getattr__(self, name):
            return getattr(self._comm, name.removeprefix("i"))

    return lambda comm: call(Blocking(comm))


def check_table(text, comm, odd, usual, prefix):
    lines = text.splitlines()
    assert lines[0] == "collective: ranks disagree"
    for rank in range(comm.size):
        row = next(line for line in lines if f"rank {rank}: " in line)
        expected = odd if rank == comm.size - 1 else usual
        assert f"rank {rank}: {prefix}" in row
        assert expected in row, row
        assert re.search(rf"call 2 of group 'world'.*, at {re.escape(__file__)}:\d+$", row)


@pytest.mark.parametrize("name", MISMATCHES)
def test_blocking_calls_that_differ(comm, name):
    odd, usual, odd_text, usual_text = MISMATCHES[name]
    comm.barrier()
    call = blocking(odd if comm.rank == comm.size - 1 else usual)
    check_table(refused(lambda: call(comm)), comm, odd_text, usual_text, "")
    assert comm.all_reduce(np.array([2])) == 2 * comm.size


@pytest.mark.parametrize("name", MISMATCHES)
def test_posted_calls_that_differ(comm, name):
    odd, usual, odd_text, usual_text = MISMATCHES[name]
    comm.barrier()
    work = (odd if comm.rank == comm.size - 1 else usual)(comm)
    check_table(refused(work.wait), comm, odd_text, usual_text, "i")
    assert refused(work.test) == refused(work.wait)
    assert comm.iall_reduce(np.array([2])).wait() == 2 * comm.size


@pytest.mark.parametrize("form", [lambda call: call, blocking], ids=["posted", "blocking"])
@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("direct", [False, True])
def test_sizes_that_only_two_ranks_know(world, name, direct, form):
    comm = adopt(check=True, direct=direct)
    odd, usual, odd_text, usual_text = SPLITS[name]
    comm.barrier()
    call = form(odd if comm.rank == comm.size - 1 else usual)

    def carry_out():
        work = call(comm)
        if hasattr(work, "wait"):
            work.wait()

    check_table(refused(carry_out), comm, odd_text, usual_text, "i" if form is not blocking else "")
    assert comm.all_reduce(np.array([2])) == 2 * comm.size


def test_only_the_call_that_differs_fails_in_whatever_order_works_are_waited_for(comm):
    x = np.array([1.0])
    first, last = comm.iall_reduce(x), comm.rank == comm.size - 1
    wrong = comm.ibarrier() if last else comm.iall_reduce(x)
    after = [comm.iall_reduce(x * k) for k in range(3)]
    for work, k in list(zip(after, range(3), strict=True))[:: -1 if last else 1]:
        assert work.wait() == k * comm.size
    if last:
        assert first.wait() == comm.size
    assert "ibarrier()" in refused(wrong.wait)
    assert first.wait() == comm.size
    assert comm.all_reduce(x) == comm.size


def test_order_of_calls_differs(comm):
    calls = [comm.barrier, lambda: comm.all_reduce(np.ones(3))]
    for call in calls if comm.rank == 0 else calls[::-1]:
        text = refused(call)
        assert "barrier()" in text
        assert "all_reduce((3,), float64, sum)" in text


def test_a_call_that_one_rank_leaves_out(comm):
    """The calls are in other places then, which only their numbers tell."""
    comm.barrier()
    if comm.rank:
        comm._numbers[False] += 1
    text = refused(lambda: comm.all_reduce(np.ones(3)))
    assert "call 2 of" in text
    assert "call 3 of" in text


def test_blocking_against_posted(comm, hasty):
    if comm.rank == 0:
        text = refused(comm.iall_reduce(np.ones(3)).wait)
    else:
        text = refused(lambda: comm.all_reduce(np.ones(3)))
    assert "rank 0" in text
    assert "iall_reduce((3,), float64, sum)" in text or "without blocking" in text
    assert f"at {__file__}:" in text


def test_split_against_another_call(comm):
    text = refused(comm.barrier if comm.rank == 0 else lambda: comm.split(0))
    assert "rank 0: barrier()" in text
    assert "rank 1: split()" in text


def test_options_differ(world):
    for options in ({"check": world.rank == 0}, {"max_count": 10 + world.rank}, {"reproducible": world.rank == 0}):
        text = refused(lambda options=options: adopt(**options))
        assert "options differ" in text
        for rank in range(world.size):
            assert f"rank {rank}: check=" in text


def test_check_is_an_argument_of_init(world, monkeypatch):
    monkeypatch.setattr(init, "_default", None)
    comm = init.init(MPI.COMM_WORLD, check=True, timeout_s=20)
    assert comm.check
    assert comm.split(0).check
    assert not comm.dup(check=False).check
    assert "dup(check=True)" in refused(lambda: init.init(comm, check=comm.rank == 0, timeout_s=20))


def test_without_check_and_gate_later_calls_are_not_compared(world):
    """And cost nothing: after the first calls nothing is exchanged beside them."""
    comm = adopt(check=False, direct=False)
    for _ in range(check.TRIAL_CALLS):
        comm.barrier()
    before = comm._checker.side._numbers[False]
    comm.barrier()
    assert comm._checker.side._numbers[False] == before == check.TRIAL_CALLS


# ---- messages
@pytest.fixture(params=[None, 4], ids=["whole", "cut"])
def checked(request, world):
    return adopt(check=True, max_count=request.param)


SENT = {
    "dtype": (np.arange(6, dtype="f4"), "which sent float32 (6,)"),
    "dtype of as many bytes": (np.arange(6), "which sent int64 (6,)"),
    "shape of as many": (np.zeros((3, 2)), "which sent float64 (3, 2)"),
    "fewer": (np.zeros(5), "which sent float64 (5,)"),
    "more": (np.zeros(3), ""),
}


@pytest.mark.parametrize("name", SENT)
def test_message_is_not_what_is_expected(world, name):
    """The receiver says so; the message is gone, and later ones are in order."""
    comm = adopt(check=True)
    x, text = SENT[name]
    shape = {"more": (2,), "shape of as many": (2, 3)}.get(name, (6,))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = [comm.isend(x, right, 5), comm.isend(np.full(2, 7.0), right, 5)]
    message = refused(lambda: comm.recv(np.zeros(shape), left, 5))
    assert f"recv of float64 {shape} on rank {comm.rank} of {comm.size} of group 'world'" in message
    assert text in message
    assert f"called at {__file__}:" in message
    assert comm.recv(np.zeros(2), left, 5).tolist() == [7, 7]
    for work in sent:
        work.wait()


def test_messages_with_headers_arrive(checked):
    """Strided, byte-swapped, empty, long ones; from anyone, in order."""
    comm, right, left = checked, (checked.rank + 1) % checked.size, (checked.rank - 1) % checked.size
    for x, out in (
        (np.arange(12.0).reshape(3, 4)[:, ::2], np.zeros((3, 2))),
        (np.arange(11.0), np.zeros(11, ">f8")),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (np.array(3.0), np.zeros(())),
    ):
        sent = comm.isend(x, right)
        assert np.array_equal(comm.recv(out, left), x)
        sent.wait()
    sent = [comm.isend(np.array([k, comm.rank]), rank, 3) for rank in range(comm.size) for k in range(3)]
    seen = []
    for _ in range(3 * comm.size):
        work = comm.irecv(np.empty(2, int), tag=3)
        k, source = work.wait()
        assert source == work.source
        seen.append((int(source), int(k)))
    assert sorted(seen) == [(rank, k) for rank in range(comm.size) for k in range(3)]
    for rank in range(comm.size):
        assert [k for source, k in seen if source == rank] == [0, 1, 2]
    for work in sent:
        work.wait()


# ---- ranks that wait for one another
@pytest.fixture(params=["checked", "gate"])
def waiting(request):
    return adopt(**WAYS[request.param])


@pytest.fixture
def groups(waiting):
    return waiting.dup(), waiting.dup()


def test_each_rank_waits_in_another_group(groups, hasty):
    first, second = groups
    text = refused((first if first.rank == 0 else second).barrier)
    assert "rank 0: barrier(), call 1 of group 'world', at" in text
    assert f"{__file__}:" in text
    assert sum("barrier()" in line for line in text.splitlines()) >= 2


def test_posted_calls_on_two_groups_cross(groups, hasty):
    first, second = groups
    mine = first if first.rank == 0 else second
    text = refused(mine.iall_reduce(np.ones((2, 3), "f4")).wait)
    assert "iall_reduce((2, 3), float32, sum)" in text


def test_a_circle_of_pairs(waiting, hasty):
    comm = waiting
    if comm.size == 2:
        return
    ring = {}
    for low in range(comm.size):
        pair = sorted([low, (low + 1) % comm.size])
        if comm.rank in pair:
            ring[low] = comm.create_group(pair)
    text = refused(ring[comm.rank].barrier)
    assert ["barrier(), call 1 of group" in line for line in text.splitlines()].count(True) == comm.size


def test_message_against_collective(waiting, hasty):
    """Rank 0 waits for a message of rank 1, which waits for rank 0 in a barrier."""
    comm = waiting
    call = functools.partial(comm.recv, np.zeros(3), 1) if comm.rank == 0 else comm.barrier
    if comm.rank < 2:
        text = refused(call)
        assert "recv of float64 (3,), waits for rank 1" in text
        assert "barrier()" in text


def test_two_long_messages_that_nobody_receives(waiting, hasty):
    comm = waiting
    if comm.rank < 2:
        text = refused(lambda: comm.send(np.zeros(1_000_000), 1 - comm.rank))
        assert "send of float64 (1000000,), waits for rank 0" in text
        assert "send of float64 (1000000,), waits for rank 1" in text


def test_a_slow_rank_is_named_and_waited_for(waiting, hasty, caplog):
    """Questions that nobody answered do not confuse later roll calls."""
    comm = waiting
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "hpcdist.comm"):
            if comm.rank == 0:
                time.sleep(0.8)
            assert comm.all_reduce(np.ones(1)) == comm.size
        said = [record.getMessage() for record in caplog.records if "stopped" in record.getMessage()]
        caplog.clear()
        told = comm.all_gather_object(said)
        assert told[0] == []
        assert any(told[1:])
        for text in said:
            assert f"all_reduce of float64 (1,) on rank {comm.rank}" in text
            assert "has not come, is busy outside hpcdist, or stopped: rank 0" in text


def test_a_rank_with_several_threads_is_given_the_benefit_of_the_doubt(world, hasty):
    """Another thread of a waiting rank may still make the call that others wait for."""
    first, second = (adopt(check=True, direct=False).dup() for _ in range(2))
    done = []
    other = threading.Thread(target=lambda: done.append(second.all_reduce(np.ones(1))))
    if world.rank == 0:
        other.start()
        time.sleep(0.8)
        first.barrier()
        other.join()
    else:
        first.barrier()
        done.append(second.all_reduce(np.ones(1)))
    assert done == [world.size]


# ---- waits that end otherwise
@pytest.mark.parametrize("direct", [False, True])
def test_a_group_can_be_used_after_time_outs(world, direct):
    comm = adopt(check=False, direct=direct)
    comm.timeout_s = 0.3
    for _ in range(2):
        if comm.rank:
            refused(comm.barrier, DistTimeoutError)
        world.barrier()
        if comm.rank == 0 and direct:
            assert "too late" in refused(comm.barrier, DistTimeoutError)
        elif comm.rank == 0:
            comm.barrier()
        world.barrier()
    comm.timeout_s = 20
    assert comm.all_reduce(np.ones(1)) == comm.size


@pytest.mark.parametrize("direct", [False, True])
def test_long_messages_go_on_while_a_rank_waits(world, direct):
    comm = adopt(check=False, direct=direct)
    if comm.rank == 0:
        sent = comm.isend(np.ones(1_000_000), 1)
    if comm.rank == 1:
        assert comm.recv(np.zeros(1_000_000), 0).sum() == 1_000_000
    comm.barrier()
    if comm.rank == 0:
        sent.wait()


def test_posted_collectives_go_on_while_a_rank_waits_for_a_message(world):
    """In check mode they are posted only when they have been compared, by whoever waits."""
    comm = adopt(check=True)
    work = comm.ibarrier()
    if comm.rank == 0:
        comm.send(np.ones(1_000_000), 1)
    else:
        work.wait()
    if comm.rank == 1:
        comm.recv(np.zeros(1_000_000), 0)
    work.wait()


def test_a_rank_may_be_calls_ahead(world):
    """The root of a broadcast need not wait for the others; what it posts then is not taken for the broadcast."""
    comm = adopt(check=False, direct=True)
    for step in range(100):
        assert comm.broadcast(np.array([step if comm.rank == 0 else -1]))[0] == step
        for work in [comm.iall_reduce(np.array([step])) for _ in range(3)]:
            assert work.wait() == step * comm.size


def test_two_threads_use_two_groups(world):
    for way in WAYS.values():
        comms = [adopt(**way) for _ in range(2)]
        sums = [[], []]

        def work(comm, sums):
            for step in range(30):
                sums.append(int(comm.all_reduce(np.array([step]))[0]))

        threads = [threading.Thread(target=work, args=pair) for pair in zip(comms, sums, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums == [[step * world.size for step in range(30)]] * 2


def test_free_while_works_are_under_way(comm):
    twin = comm.dup()
    if comm.rank == 0:
        work = twin.ibarrier()
        text = refused(twin.free, DistError)
        assert "free of group 'world': 1 under way" in text
        assert f"barrier, called at {__file__}:" in text
    comm.barrier()
    (work if comm.rank == 0 else twin.ibarrier()).wait()
    twin.iall_reduce(np.ones(10))  # nobody waits for it
    twin.barrier()
    limit = time.monotonic() + LIMIT_S
    while twin._under_way and time.monotonic() < limit:
        twin.isend(np.ones(1), twin.rank).test()
        twin.recv(np.ones(1), twin.rank)
        twin._checker.advance()
    twin.free()


@pytest.mark.parametrize("folder", ["/nowhere/at/all", "/proc"])
def test_without_shared_memory_ranks_do_without(world, folder, monkeypatch):
    monkeypatch.setattr(shared, "_FOLDER", shared.Path(folder))
    comm = adopt(check=False, direct=True)
    assert comm._gate is None
    assert comm.all_reduce(np.ones(1)) == comm.size
