"""Random programs of calls, also such in which one rank does something else once; long with ``-m soak``."""

import itertools

import pytest
import random_faults
from mpi4py import MPI
from random_programs import Program
from random_runs import Run

from hpcdist import config
from hpcdist.comm.mpi import window
from hpcdist.comm.mpi.communicator import MpiCommunicator

RANKS = (2, 3, 4)
WAYS = [
    {"check": check, "direct": direct, "max_count": most}
    for check, direct, most in itertools.product((False, True), (False, True), (7, 100, 2**31 - 1))
]
LONG = 4
"""So many times longer is each part of the soak."""


def adopt(way):
    return MpiCommunicator.adopt(MPI.COMM_WORLD, timeout_s=20, **way)


@pytest.fixture(autouse=True)
def small_window(monkeypatch):
    """All reductions that may go through the window do, in small chunks."""
    monkeypatch.setattr(window.WindowCalls, "LEAST_BYTES", 1)
    monkeypatch.setattr(window, "SLOT_BYTES", 512)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(config, "environment", lambda: config.Environment(late_s=0.2))


def run_programs(way, seeds):
    comm = adopt(way)
    for seed in seeds:
        run = Run(comm, Program(seed, comm.size))
        run.go()
        run.free()
    comm.free()


def run_mismatches(way, seeds):
    """Without check mode only the first calls of a group are always compared, so there each program has its own."""
    comm = adopt(way)
    for seed in seeds:
        random_faults.check_mismatch(comm, seed, way["check"])
        if not way["check"]:
            comm.free()
            comm = adopt(way)


def run_disorders(world, way, kind, seeds):
    for seed in seeds:
        comm = adopt(way)
        comm.timeout_s = 0.4
        random_faults.check_disorder(comm, seed, kind)
        world.barrier()


def id_of(way):
    return " ".join(f"{name}={value}" for name, value in way.items())


@pytest.mark.parametrize("way", WAYS, ids=id_of)
def test_results_are_those_of_numpy(way, repeats):
    run_programs(way, range(2 * repeats))


@pytest.mark.parametrize("way", WAYS[::3], ids=id_of)
def test_only_the_call_that_does_not_fit_fails(way, repeats):
    run_mismatches(way, range(2 * repeats))


@pytest.mark.parametrize("kind", random_faults.KINDS)
def test_ranks_that_are_let_down_get_an_error(world, impatient, kind, repeats):
    place = random_faults.KINDS.index(kind)
    for turn in range(repeats):
        run_disorders(world, WAYS[::3][(place + turn) % 4], kind, [place + turn])


@pytest.mark.soak
@pytest.mark.parametrize("part", range(LONG))
@pytest.mark.parametrize("way", WAYS, ids=id_of)
def test_results_are_those_of_numpy_for_long(way, part, repeats):
    run_programs(way, range(1000 * (part + 1), 1000 * (part + 1) + 10 * repeats))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(LONG))
@pytest.mark.parametrize("way", WAYS[::3], ids=id_of)
def test_only_the_call_that_does_not_fit_fails_for_long(way, part, repeats):
    run_mismatches(way, range(1000 * (part + 1), 1000 * (part + 1) + 10 * repeats))


@pytest.mark.soak
@pytest.mark.parametrize("kind", random_faults.KINDS)
@pytest.mark.parametrize("way", WAYS[::3], ids=id_of)
def test_ranks_that_are_let_down_get_an_error_for_long(world, impatient, way, kind, repeats):
    run_disorders(world, way, kind, range(1000, 1000 + 2 * repeats))
