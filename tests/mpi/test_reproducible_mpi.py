"""Reproducible runs over MPI: the bits of each process alone."""

import numpy as np
import pytest
from reproducible_suite import assert_same, looped, trained

import hpcdist as hd
from hpcdist.backends import cpu
from hpcdist.comm.local import solo

RANKS = (2, 3, 4)


@pytest.fixture(scope="module")
def alone():
    cpu.set_threads(1)  # as reproducible runs do; alone, a rank would have all cores
    return trained(solo(reproducible=True), "ddp", 7, 3)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "hsdp"])
def test_losses_norms_and_weights(world, kind, alone):
    if kind == "hsdp" and world.size % 2:
        pytest.skip("two copies need an even number of ranks")
    comm = hd.init(world, reproducible=True, timeout_s=60)
    assert_same(trained(comm, kind, 7, 3), alone)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_loop_goes_on_from_a_checkpoint_of_one_rank(world, kind, tmp_path):
    folder = world.broadcast_object(tmp_path)
    comm = hd.init(world, reproducible=True, timeout_s=60)
    if world.rank == 0:
        looped(solo(reproducible=True), kind, folder, 2)
    world.barrier()
    found = looped(comm, kind, folder, 4, resume=True)
    expected = looped(solo(reproducible=True), "ddp", tmp_path / "alone", 4)
    expected["losses"][1][2] = found["losses"][1][2]  # the first run ended, and validated, there
    assert found.keys() == expected.keys()
    assert_same(found, expected)
    assert np.isfinite(found["losses"][-1][1])
