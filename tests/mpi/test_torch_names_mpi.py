"""PyTorch's functions on MPI ranks: the bodies of tests/torch_suite.py."""

import numpy as np
import pytest
import torch_suite
from mpi4py import MPI

import hpcdist
import hpcdist.comm as dist
from hpcdist.comm import init as module
from hpcdist.comm.mpi.communicator import MpiCommunicator


@pytest.mark.parametrize("direct", [False, True], ids=["posted", "direct"])
@pytest.mark.parametrize("check", torch_suite.CHECKS)
def test_torch_names(world, check, direct):
    comm = MpiCommunicator(world.dup().handle, timeout_s=world.timeout_s, direct=direct, check=True)
    with dist.using_group(comm):
        check(comm)


def test_the_process_group_from_begin_to_end(monkeypatch):
    monkeypatch.setattr(module, "_default", None)
    dist.init_process_group("mpi", timeout=20, comm=MPI.COMM_WORLD)
    assert (dist.get_rank(), dist.get_world_size()) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    assert dist.get_backend() == "mpi"
    mine, _ = dist.new_subgroups(min(2, MPI.COMM_WORLD.size))
    x = np.ones(3)
    dist.all_reduce(x, group=mine)
    dist.all_reduce(x)
    dist.destroy_process_group()
    assert not dist.is_initialized()


def test_init_says_whether_ranks_compare(world, monkeypatch):
    monkeypatch.setattr(module, "_default", None)
    for check in (False, True):
        assert hpcdist.init(MPI.COMM_WORLD, check=check, timeout_s=20).check is check
        assert hpcdist.init(world, check=check).check is check
    assert hpcdist.init(world).check is world.check


def test_a_group_whose_members_do_not_come_is_an_error(world):
    if world.size > 1 and world.rank == 0:
        with dist.using_group(world), pytest.raises(dist.DistTimeoutError, match="nothing from rank 1"):
            dist.new_group([0, 1], timeout=0.2)
    world.barrier()
