"""Errors that ranks share: bodies of tests that take a communicator of 1 to 4 ranks."""

import traceback

import pytest

from hpcdist.comm.agreement import on_every_rank, on_one_rank, portable, raise_first


class AwkwardError(Exception):
    """Cannot be made again from its message."""

    def __init__(self, code, place):
        super().__init__(f"code {code} at {place}")


def note(comm, *ranks):
    return [f"on rank {', '.join(map(str, ranks))} of {comm.size}"] if len(ranks) < comm.size else []


def notes(error):
    return getattr(error, "__notes__", [])


def fail(error):
    raise error


def check_one_rank_works_for_all(comm):
    for root in range(comm.size):
        called = []

        def work(root=root, called=called):
            called.append(comm.rank)
            return {"rank": comm.rank, "none": None, "root": root}

        assert on_one_rank(comm, work, root) == {"rank": root, "none": None, "root": root}
        assert called == [root] * (comm.rank == root)
    assert on_one_rank(comm, lambda: comm.rank) == 0


def check_what_one_rank_raises_all_raise(comm):
    for root in range(comm.size):
        with pytest.raises(FileNotFoundError) as caught:
            on_one_rank(comm, lambda: fail(FileNotFoundError(2, "no such file", "x.h5")), root)
        assert (caught.value.errno, caught.value.filename) == (2, "x.h5")
        assert notes(caught.value) == note(comm, root)
        assert caught.value.echo is (comm.rank != root)
    comm.barrier()


def check_the_failing_rank_has_the_whole_traceback(comm):
    last = comm.size - 1
    with pytest.raises(ValueError, match="boom") as caught:
        on_one_rank(comm, lambda: fail(ValueError("boom")), last)
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("Traceback (most recent call last)") == 1
    assert ("in fail\n" in text) is (comm.rank == last)


def check_roots_that_are_none(comm):
    with pytest.raises(ValueError, match="root"):
        on_one_rank(comm, lambda: 0, comm.size)


def check_what_cannot_be_pickled(comm):
    last = comm.size - 1
    with pytest.raises(TypeError, match="cannot be pickled"):
        on_one_rank(comm, lambda: lambda: 0, last)
    with pytest.raises(TypeError, match=f"rank {last} cannot be pickled"):
        on_every_rank(comm, lambda: (lambda: 0) if comm.rank == last else 0)
    with pytest.raises(RuntimeError, match="AwkwardError: code 7 at home") as caught:
        on_one_rank(comm, lambda: fail(AwkwardError(7, "home")), last)
    assert isinstance(caught.value.__cause__, AwkwardError) is (comm.rank == last)
    assert on_every_rank(comm, lambda: comm.rank) == list(range(comm.size))


def check_all_ranks_work(comm):
    assert on_every_rank(comm, lambda: comm.rank**2) == [rank**2 for rank in range(comm.size)]
    assert on_every_rank(comm, lambda: None) == [None] * comm.size


def check_the_lowest_rank_that_fails_is_heard(comm):
    first = min(1, comm.size - 1)
    with pytest.raises(KeyError) as caught:
        on_every_rank(comm, lambda: fail(KeyError(comm.rank)) if comm.rank >= first else "fine")
    assert caught.value.args == (first,)
    assert notes(caught.value) == note(comm, *range(first, comm.size))
    assert caught.value.echo is (comm.rank != first)
    if comm.rank > first:
        assert caught.value.__cause__.args == (comm.rank,)
    comm.barrier()


def check_an_error_that_is_told_twice(comm):
    """The note comes once."""
    mine = ValueError("held back") if comm.rank == 0 else None
    for _ in range(2):
        with pytest.raises(ValueError, match="held back") as caught:
            comm.agree(mine)
        assert notes(caught.value) == note(comm, 0)


def check_interrupts_are_not_agreed_on(comm):
    """They end the rank, and what ends a rank ends the job."""
    if comm.size == 1:
        with pytest.raises(KeyboardInterrupt):
            on_every_rank(comm, lambda: fail(KeyboardInterrupt()))


def check_no_error_is_no_error(comm):
    raise_first(comm.rank, [None] * comm.size, None)
    assert portable(None) is None


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]
