"""MPI forms groups without a time limit: ranks find out before whether all have come, and still wait."""

import logging
import time

import numpy as np
import pytest
from mpi4py import MPI

from hpcdist import config
from hpcdist.comm import CollectiveMismatchError, DistTimeoutError, ReduceOp
from hpcdist.comm.mpi.communicator import MpiCommunicator

RANKS = (2, 3, 4)
LIMIT_S = 0.2
FORM = {
    "split": lambda comm: comm.split(0),
    "split_node": lambda comm: comm.split_node(),
    "create_group": lambda comm: comm.create_group(range(comm.size)),
}


def adopt(timeout_s=20, **options):
    return MpiCommunicator.adopt(MPI.COMM_WORLD, timeout_s=timeout_s, **options)


@pytest.fixture(params=[False, True], ids=["posting", "direct"])
def hasty(request, world):
    """A group in which ranks give up soon; what it does to its ranks does not concern the others."""
    yield adopt(LIMIT_S, direct=request.param, check=False)
    assert world.all_reduce(np.array([1])) == world.size


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(config, "environment", lambda: config.Environment(late_s=0.4))


@pytest.mark.parametrize(("verb", "late"), [("split", 1), ("split_node", 0), ("create_group", 0), ("create_group", 1)])
def test_who_comes_when_others_have_given_up_gets_an_error_too(world, hasty, verb, late):
    """And does not wait for ever in MPI for those that are gone."""
    if world.rank == late:
        time.sleep(1.5 * LIMIT_S)
    start = time.monotonic()
    with pytest.raises(DistTimeoutError, match=verb):
        FORM[verb](hasty)
    assert time.monotonic() - start < 10


def test_second_attempt_succeeds_whatever_is_left_of_the_first(world, hasty):
    """Ranks have given up different groups, once or twice, before all form the same one."""
    everyone = list(range(world.size))
    for ranks in (everyone, everyone[::-1], everyone)[: 1 + world.rank % 3]:
        if world.rank != 1:
            with pytest.raises((DistTimeoutError, CollectiveMismatchError)):
                hasty.create_group(ranks)
    world.barrier()
    hasty.timeout_s = 20
    for ranks in (everyone, everyone[::-1]):
        part = hasty.create_group(ranks)
        assert part.all_gather(np.array([world.rank])).tolist() == ranks
        assert part.all_reduce(np.array([world.rank]), ReduceOp.MAX) == world.size - 1


def test_host_names_those_that_have_come_and_gone(world, hasty):
    """The lowest rank of a group hears of those that have not waited for it."""
    if world.rank:
        with pytest.raises(DistTimeoutError, match="nothing from rank 0\n"):
            hasty.create_group(range(world.size))
    world.barrier()
    if world.rank == 0:
        gone = ", ".join(map(str, range(1, world.size)))
        with pytest.raises(DistTimeoutError, match=f"got      rank {gone} has come, and given up waiting"):
            hasty.create_group(range(world.size))


CROSSING = {
    "barrier": lambda comm: comm.barrier(),
    "recv": lambda comm: comm.recv(np.zeros(3), 0),
}


@pytest.mark.parametrize("how", CROSSING)
@pytest.mark.parametrize("direct", [False, True])
def test_a_rank_that_waits_elsewhere_is_found_out(world, impatient, how, direct):
    """All get a table of who waits where, long before the time limit."""
    comm = adopt(direct=direct, check=False)
    start, last = time.monotonic(), world.size - 1
    with pytest.raises(CollectiveMismatchError) as caught:
        CROSSING[how](comm) if comm.rank == last else comm.create_group(range(comm.size))
    assert time.monotonic() - start < 10
    lines = str(caught.value).splitlines()
    assert any("create_group((0, 1" in line and f"at {__file__}:" in line for line in lines)
    assert any(f"rank {last}: {how}" in line and f"at {__file__}:" in line for line in lines)


def test_a_rank_that_does_not_come_is_named_meanwhile(world, impatient, caplog):
    comm = adopt(check=False)
    with caplog.at_level(logging.WARNING, "hpcdist.comm"):
        if comm.rank == 0:
            time.sleep(0.9)
        comm.create_group(range(comm.size))
    said = world.all_gather_object([record.getMessage() for record in caplog.records])
    assert any("create_group" in text and "stopped: rank 0" in text for told in said[1:] for text in told)


def test_record_names_ranks_of_the_world(world, monkeypatch):
    """Also where the group that others are formed of is a part of it, in another order."""
    part = MPI.COMM_WORLD.Split(0 if world.rank else 1, -world.rank)
    comm, seen = MpiCommunicator.adopt(part, timeout_s=20, check=False), []
    monkeypatch.setattr(comm._recorder, "begin", lambda o, members, **_: seen.append((o.verb, members)) or 0)
    comm.create_group([comm.rank])
    assert seen == [("create_group", f"{world.rank}#new")]


def test_order_of_ranks_differs(world):
    everyone = list(range(world.size))
    with pytest.raises(CollectiveMismatchError, match="create_group on group 'world': ranks disagree"):
        adopt(check=False).create_group(everyone if world.rank else everyone[::-1])
