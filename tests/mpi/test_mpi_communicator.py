"""MPI ranks: the verbs, also with messages cut small, and what only MPI can get wrong."""

import gc
import threading
import time

import comm_suite
import numpy as np
import pytest
from mpi4py import MPI

from hpcdist.comm import CollectiveMismatchError, DistBackendError, DistTimeoutError
from hpcdist.comm.mpi import progress, window, work
from hpcdist.comm.mpi.communicator import MpiCommunicator

WAYS = {
    "whole": {"direct": False},
    "cut at 1000": {"direct": False, "max_count": 1000},
    "cut at 7": {"direct": True, "max_count": 7},
    "direct": {"direct": True},
    "window": {"direct": True},
    "checked": {"direct": False, "check": True},
    "direct and checked": {"direct": True, "check": True, "max_count": 100},
}


@pytest.fixture(params=WAYS)
def comm(request, world, monkeypatch):
    if request.param == "window":  # all reductions, and in several chunks
        monkeypatch.setattr(window.WindowCalls, "LEAST_BYTES", 1)
        monkeypatch.setattr(window, "SLOT_BYTES", 512)
    return MpiCommunicator(world.handle, timeout_s=world.timeout_s, **{"check": False, **WAYS[request.param]})


@pytest.mark.parametrize("check", comm_suite.CHECKS)
def test_verbs(comm, check):
    check(comm)


def test_cutting_really_happens(world):
    small = MpiCommunicator(world.dup().handle, timeout_s=world.timeout_s, max_count=3, check=True)
    for comm, expected in ((world, 1), (small, 4)):
        counts, post = [], comm._posting.all_reduce
        comm._posting.all_reduce = lambda *message, counts=counts, post=post: counts.append(message) or post(*message)
        comm.iall_reduce(np.arange(10.0)).wait()
        assert len(counts) == (expected if world.size > 1 else 0)


def test_environment_sets_the_cut(world, monkeypatch):
    from hpcdist import config

    monkeypatch.setattr(config, "environment", lambda: config.read({"HPCDIST_MAX_COUNT": "1000"}))
    comm = MpiCommunicator(world.dup().handle, timeout_s=world.timeout_s)
    assert comm.max_count == 1000
    comm_suite.check_long_messages_b03(comm)


def test_works_may_be_dropped_while_they_are_under_way(world):
    for _ in range(10):
        world.iall_reduce(np.ones(1_000_000))
        world.ireduce_scatter(np.ones(world.size * 100_000))
        world.ibroadcast(np.ones(1_000_000))
        assert world.all_reduce(np.ones(2)).tolist() == [world.size] * 2


def test_works_may_become_garbage_while_others_are_swept(world):
    """Making pairs may start a collection, which drops works that are part of cycles."""
    plain, before = world.plain(), gc.get_threshold()
    gc.disable()
    try:
        for _ in range(100):
            plain.irecv(np.zeros(1), plain.rank, 5)
        cycle = [plain.irecv(np.zeros(1), plain.rank, 5)]
        cycle.append(cycle)
        del cycle
        pairs = [(k, k) for k in range(5000)]  # none is left over to be used again
        gc.set_threshold(gc.get_count()[0] + 20)
        gc.enable()
        work.sweep()
    finally:
        gc.enable()
        gc.set_threshold(*before)
    assert len(pairs) == 5000
    for sent in [plain.isend(np.zeros(1), plain.rank, 5) for _ in range(101)]:
        sent.wait()
    gc.collect()
    plain.barrier()
    limit = time.monotonic() + 10
    while work._abandoned and time.monotonic() < limit:
        work.sweep()
    assert not work._abandoned


# ---- whose communicator it is
def test_host_communicator_is_duplicated(world):
    host = MPI.COMM_WORLD.Dup()
    ours = MpiCommunicator.adopt(host, timeout_s=world.timeout_s)
    assert MPI.Comm.Compare(host, ours.handle) == MPI.CONGRUENT
    mine, theirs = np.array([1.0]), np.zeros(1)
    work = ours.iall_reduce(mine)
    host.Allreduce(mine * 10, theirs)
    assert (work.wait()[0], theirs[0]) == (world.size, 10 * world.size)
    ours.free()
    host.Free()


def test_fortran_handle_and_any_subset_are_taken(world):
    part = MPI.COMM_WORLD.Split(world.rank % 2, -world.rank)
    ours = MpiCommunicator.adopt(part.py2f(), timeout_s=world.timeout_s)
    assert (ours.rank, ours.size) == (part.rank, part.size)
    comm_suite.check_all_reduce_layouts(ours)
    comm_suite.check_all_gather_dims_and_sizes(ours)


def test_what_is_no_communicator_is_refused():
    for wrong in (MPI.COMM_NULL, -12345):
        with pytest.raises(ValueError, match="communicator"):
            MpiCommunicator.adopt(wrong)
    with pytest.raises(TypeError, match="communicator\n  got      str"):
        MpiCommunicator.adopt("world")


def test_adopting_has_a_time_limit(world):
    """A rank that does not take part is an error on the others; it may come late."""
    host = MPI.COMM_WORLD.Dup()
    if world.rank:
        with pytest.raises(DistTimeoutError, match=r"communicator of \d ranks: not duplicated within 0.2 s on rank \d"):
            MpiCommunicator.adopt(host, timeout_s=0.2)
    world.barrier()
    if world.rank == 0 and world.size > 1:
        with pytest.raises(DistTimeoutError):
            MpiCommunicator.adopt(host, timeout_s=0.2)
    world.barrier()


# ---- waits
@pytest.mark.parametrize("direct", [False, True])
def test_time_out_says_who_what_and_where(world, direct):
    """Where arrivals are seen, the late ones are named, and find out that they are too late."""
    comm = MpiCommunicator(world.dup().handle, name="lonely", timeout_s=0.2, direct=direct)
    missing = "rank 0" if direct else f"all {world.size} ranks"
    late = world.size > 1 and world.rank == 0
    gone = ", ".join(map(str, range(1, world.size)))
    if world.rank:
        for post, text in (
            (lambda: comm.all_reduce(np.ones((2, 3), "f4")), r"all_reduce of float32 \(2, 3\)"),
            (comm.barrier, "barrier"),
        ):
            start = time.monotonic()
            with pytest.raises(DistTimeoutError, match=text) as caught:
                post()
            assert 0.1 < time.monotonic() - start < 5
            message = str(caught.value)
            assert f"on rank {world.rank} of {world.size} of group 'lonely': not done within 0.2 s" in message
            assert f"called at {__file__}:" in message
            assert f"{missing} of the group to take part" in message
        assert isinstance(caught.value, TimeoutError)
    world.barrier()
    for verb in (lambda: comm.all_reduce(np.ones((2, 3), "f4")), comm.barrier) if late else ():
        if direct:
            with pytest.raises(DistTimeoutError, match=f"too late\n  got      rank {gone} has given up waiting"):
                verb()
        else:
            verb()
    world.barrier()


def test_recv_time_out_names_the_sender(world):
    with pytest.raises(DistTimeoutError, match=f"rank {world.size - 1} to take part"):
        world.dup().irecv(np.zeros(3), world.size - 1, tag=3).wait(0.05)


def test_a_wait_may_have_its_own_limit(world):
    comm = world.dup()
    if world.rank:
        work = comm.ibarrier()
        with pytest.raises(DistTimeoutError, match=r"0\.05 s"):
            work.wait(0.05)
    world.barrier()
    (work if world.rank else comm.ibarrier()).wait()
    comm.free()


def test_result_before_the_end_is_an_error(world):
    comm = world.dup()
    if world.rank:
        work = comm.ibarrier()
        with pytest.raises(RuntimeError, match="the work is not done"):
            work.result()
    world.barrier()
    (work if world.rank else comm.ibarrier()).wait()


@pytest.mark.parametrize("length", [2, 4])
def test_message_of_another_length_is_an_error(world, length):
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    sent = world.isend(np.ones(length), right, tag=9)
    with pytest.raises(CollectiveMismatchError, match=r"recv of float64 \(3,\) on rank"):
        world.recv(np.zeros(3), left, tag=9)
    sent.wait()
    world.barrier()


def test_forgotten_messages_keep_their_buffers(world):
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for tag in range(20):
        world.isend(np.full(50_000, float(tag)), right, tag)
    for tag in range(20):
        assert set(world.recv(np.zeros(50_000), left, tag)) == {float(tag)}


def test_what_is_no_array_is_refused(world):
    for call in (
        lambda: world.all_reduce([1.0, 2.0]),
        lambda: world.broadcast(3.0),
        lambda: world.all_gather(np.array([object()])),
    ):
        with pytest.raises(TypeError, match=r"array|plain elements"):
            call()


def test_tags_end_where_ours_begin(world):
    for tag in (-1, world.handle.Get_attr(MPI.TAG_UB)):
        with pytest.raises(ValueError, match="send: tag"):
            world.isend(np.ones(1), 0, tag)


def test_unpicklable_value_of_one_rank_is_an_error_on_all(world):
    last = world.size - 1
    with pytest.raises(TypeError, match=f"the value of rank {last} cannot be pickled"):
        world.all_gather_object((lambda: 0) if world.rank == last else 0)
    assert world.all_gather_object(world.rank) == list(range(world.size))


def test_negative_color_is_refused(world):
    with pytest.raises(ValueError, match="split: color"):
        world.split(-1)


# ---- progress
def test_watched_works_end_while_the_caller_computes(world):
    """Without a watcher a long message would wait for the next call; other ranks give theirs by polling."""
    plain = world.plain()
    work = plain.iall_reduce(np.ones(2_000_000))
    plain.watch(work)
    limit = time.monotonic() + 10
    while work._requests and time.monotonic() < limit:
        np.ones((100, 100)) @ np.ones((100, 100))
        world.poll()
    assert not work._requests
    assert work.wait()[-1] == world.size


def test_progress_thread_sleeps_and_ends(world):
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    world.watch(world.ibarrier())
    names = [thread.name for thread in threading.enumerate() if thread.daemon]
    assert "hpcdist-progress" in names
    world.barrier()
    limit = time.monotonic() + 10
    while progress.watched() and time.monotonic() < limit:
        time.sleep(0.001)
    assert progress.watched() == 0


def test_without_a_thread_poll_makes_the_progress(world, monkeypatch):
    watcher = progress.Watcher()
    monkeypatch.setattr(progress, "any_thread", lambda: False)
    work = world.plain().iall_reduce(np.ones(1000))
    watcher.watch(work)
    limit = time.monotonic() + 10
    while watcher.watched() and time.monotonic() < limit:
        watcher.poll()
    assert not work._requests
    assert work.wait()[0] == world.size


def test_stopped_watcher_starts_no_thread(world):
    watcher = progress.Watcher()
    watcher.watch(world.ibarrier())
    watcher.stop()
    before = threading.active_count()
    late = world.ibarrier()
    watcher.watch(late)
    assert threading.active_count() == before
    late.wait()


# ---- the window
def test_large_reductions_go_through_memory_that_ranks_share(world):
    """Many chunks, uneven parts, and more bytes than the least; a window that cannot be had changes nothing."""
    sizes = [100_000 * (rank + 1) + rank for rank in range(world.size)]
    start = sum(sizes[: world.rank])
    for dtype in ("f4", "f8", "i8"):
        arrays = [np.arange(sum(sizes)).astype(dtype) % 1000 + rank for rank in range(world.size)]
        total = sum(arrays)
        for shared in (True, False):
            comm = MpiCommunicator(world.handle, timeout_s=world.timeout_s, direct=True)
            if not shared:
                comm.blocking_calls._open = lambda: None
            mine = arrays[world.rank].copy()
            assert np.array_equal(comm.all_reduce(mine, out=mine), total)
            part = comm.reduce_scatter(arrays[world.rank], sizes=sizes)
            assert np.array_equal(part, total[start : start + sizes[world.rank]])
            assert (comm.blocking_calls._window is not None) == (shared and world.size > 1)


# ---- the fast lanes
def test_forms_of_calls_from_one_line(world):
    """The second call of a form takes the express lane: right values, whatever changed since the first."""
    comm = MpiCommunicator(world.handle, timeout_s=world.timeout_s, direct=True, check=False)
    n, rank = comm.size, comm.rank
    total = n * (n + 1) / 2
    sizes = [2 * place + 1 for place in range(n)]
    assert (comm._express is not None) == (n > 1)
    for turn, dtype in enumerate(["f4", "f8", "f4", "i8", "c8", "f4"] * 2):
        root, x = turn % n, np.full((n, 2), rank + 1, dtype)
        assert comm.all_reduce(x, out=x) is x
        assert (x == total).all()
        x = np.full((n, 2), rank + 1, dtype)
        out = np.zeros_like(x) if rank == root else None
        assert comm.reduce(x, root, out=out) is out
        assert out is None or (out == total).all()
        part = np.zeros((1, 2), dtype)
        assert comm.reduce_scatter(x, out=part) is part
        assert (part == total).all()
        whole = np.zeros((sum(sizes), 2), dtype)
        comm.all_gather(np.full((sizes[rank], 2), rank, dtype), sizes=sizes, out=whole)
        assert whole[:, 0].tolist() == np.repeat(np.arange(n), sizes).tolist()
        comm.broadcast(x, root, out=x)
        assert (x == root + 1).all()
        received = [np.zeros(place + 1, dtype) for place in range(n)]
        parts = [np.full(rank + 1, rank, dtype)] * n
        comm.all_to_all(parts, [(place + 1,) for place in range(n)], out=received)
        assert [set(r.tolist()) for r in received] == [{place} for place in range(n)]
        for r in received:
            r[...] = 0
        got = comm.gather(parts[0], root, out=received if rank == root else None)
        assert (got is None) == (rank != root)
        assert rank != root or [r[0] for r in received] == list(range(n))
        comm.scatter([np.full((1, 2), place, dtype) for place in range(n)] if rank == root else None, part, root)
        assert (part == rank).all()
        comm.barrier()


def test_what_is_wrong_is_found_in_the_fast_lanes_too(world):
    """Overlapping results, other shapes, and messages of another length, after a call that was right."""
    comm = MpiCommunicator(world.handle, timeout_s=world.timeout_s, direct=True, check=False)
    n, rank = comm.size, comm.rank
    memory = np.zeros(4 * n + 4)

    def gather(x, out):
        return comm.all_gather(x, out=out)

    gather(np.ones(4), memory[: 4 * n])
    with pytest.raises(ValueError, match="all_gather: out"):
        gather(memory[:4], memory[: 4 * n])
    with pytest.raises(ValueError, match="all_gather: out"):
        gather(np.ones(4), np.zeros(4 * n + 1))

    def exchange(mine, theirs, parts=None):
        out = [np.zeros(theirs) for _ in range(n)]
        return comm.all_to_all(parts or [np.ones(mine)] * n, [(theirs,)] * n, out=out)

    exchange(2, 2)
    if n > 1:
        with pytest.raises(TypeError, match="all_to_all: dtype of parts"):
            exchange(2, 2, [np.ones(2, "f4"), *[np.ones(2)] * (n - 1)])
    right, left = (rank + 1) % n, (rank - 1) % n
    for length in (3, 2, 4, 3):
        sent = comm.isend(np.ones(length), right, tag=9)
        if length == 3:
            assert comm.recv(np.zeros(3), left, tag=9).all()
        else:
            with pytest.raises(CollectiveMismatchError, match=r"recv of float64 \(3,\) on rank"):
                comm.recv(np.zeros(3), left, tag=9)
        sent.wait()
        comm.barrier()
    comm.all_reduce(np.ones(2))


def test_what_mpi_refuses_is_an_error_of_ours_in_either_lane(world):
    comm = MpiCommunicator(world.handle, timeout_s=world.timeout_s, direct=True, check=False)

    def refuse(*_):
        raise MPI.Exception(MPI.ERR_OTHER)

    comm.blocking_calls.broadcast = refuse
    x = np.ones(3)
    for out in (x, None) if comm.size > 1 else ():
        with pytest.raises(DistBackendError, match=r"broadcast of float64 \(3,\) on rank \d"):
            comm.broadcast(x, out=out)
    assert comm.all_reduce(x).tolist() == [comm.size] * 3
