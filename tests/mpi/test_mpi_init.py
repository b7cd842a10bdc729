"""hd.init on MPI ranks."""

import os
import sys
import threading

import numpy as np
import pytest
from mpi4py import MPI

import hpcdist as hd
import hpcdist.comm.init as module
from hpcdist.backends import cpu
from hpcdist.comm import get_default
from hpcdist.comm.launched import launched


@pytest.fixture
def fresh(monkeypatch):
    """No default, thread counts left alone."""
    calls = []
    monkeypatch.setattr(module, "_default", None)
    monkeypatch.setattr(cpu, "set_threads", lambda n, local_size: calls.append((n, local_size)))
    return calls


def test_launched_and_mpi_agree(world):
    place = launched(os.environ)
    assert (place.rank, place.size) == (world.rank, world.size)
    node = world.split_node()
    assert place.local_size == node.size
    # how a launcher counts the ranks of a node depends on where it put them
    assert sorted(node.all_gather_object(place.local_rank)) == list(range(node.size))


def test_world_is_duplicated_and_becomes_the_default(world, fresh):
    comm = hd.init(abort_on_error=False, timeout_s=20)
    assert (comm.rank, comm.size) == (world.rank, world.size)
    assert MPI.Comm.Compare(comm.handle, MPI.COMM_WORLD) == MPI.CONGRUENT
    assert hd.init() is comm
    assert get_default() is comm
    assert comm.all_reduce(np.array([1])).tolist() == [world.size]
    assert fresh == [(None, world.split_node().size)]


@pytest.mark.parametrize("as_handle", [False, True])
def test_host_communicator(world, fresh, as_handle):
    """It is duplicated, hooks are left alone, and so are thread counts."""
    before = sys.excepthook, threading.excepthook, sys.exit
    host = MPI.COMM_WORLD.Split(world.rank % 2, world.rank)
    comm = hd.init(host.py2f() if as_handle else host, timeout_s=20)
    assert (comm.rank, comm.size) == (host.rank, host.size)
    assert MPI.Comm.Compare(comm.handle, host) == MPI.CONGRUENT
    assert (sys.excepthook, threading.excepthook, sys.exit) == before
    assert fresh == []
    assert comm.all_reduce(np.array([1])).tolist() == [host.size]


def test_communicator_that_exists(world, fresh):
    comm = hd.init(world, timeout_s=9, reproducible=True)
    assert comm is not world
    assert (comm.size, comm.timeout_s, comm.reproducible) == (world.size, 9, True)
    assert comm.split(0).reproducible
    assert fresh == [(1, world.split_node().size)]


def test_mpi_that_runs_without_a_known_launcher(world, fresh, monkeypatch):
    monkeypatch.setattr(module, "launched", lambda _: None)
    comm = hd.init(abort_on_error=False, timeout_s=20)
    assert comm.size == world.size
    assert fresh == [(None, world.size)]
