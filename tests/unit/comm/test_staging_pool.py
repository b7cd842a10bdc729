"""The pool of pinned buffers."""

import sys

import device_stand_in as stand_in
import pytest

from hpcdist.comm.mpi import staging


@pytest.fixture
def card(monkeypatch):
    made = stand_in.Card()
    monkeypatch.setitem(sys.modules, "cupy", stand_in.cupy(made))
    return made


def test_buffers_are_used_again_by_size(card):
    pool = staging.Pool()
    first = pool.take(5000)
    assert first.nbytes == 8192
    pool.give(first)
    assert pool.take(8192) is first
    assert pool.take(8192) is not first
    assert pool.take(8193).nbytes == 16384
    assert [pool.take(n).nbytes for n in (0, 1, 4096, 4097)] == [4096, 4096, 4096, 8192]


def test_no_more_is_kept_than_allowed(card):
    pool = staging.Pool(kept_bytes=10_000)
    buffers = [pool.take(8192) for _ in range(2)]
    for buffer in buffers:
        pool.give(buffer)
    card.num_pinned = 0
    assert pool.take(8192) is buffers[0]
    assert pool.take(8192) is not buffers[1]
    assert card.num_pinned == 1
