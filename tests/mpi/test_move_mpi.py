"""The redistribution table over MPI: the bodies of tests/move_suite.py."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[1]))

import move_suite

from hpcdist.comm.mpi.communicator import MpiCommunicator
from hpcdist.dtensor import Invariant, Replicate, Shard

pytestmark = pytest.mark.mpi

pairs = pytest.mark.parametrize(("src", "dst"), move_suite.PAIRS)


@pytest.fixture(scope="module")
def comm():
    group = MpiCommunicator.adopt(MPI.COMM_WORLD, timeout_s=30)
    yield group
    group.free()


@pairs
def test_values_layout_and_collectives(comm, src, dst):
    for shape in move_suite.SHAPES:
        move_suite.check_values(comm, src, dst, shape, np.float32)


@pairs
def test_dtypes(comm, src, dst):
    for dtype in (np.float64, np.complex64, np.int64, np.float16, ml_dtypes.bfloat16):
        move_suite.check_values(comm, src, dst, (5, 7), dtype)


@pairs
def test_the_table_is_its_own_transpose(comm, src, dst):
    for shape in move_suite.SHAPES:
        move_suite.check_transpose(comm, src, dst, shape)


@pairs
def test_gradients_move_the_transposed_way(comm, src, dst):
    for shape in move_suite.SHAPES:
        move_suite.check_gradient(comm, src, dst, shape)


@pytest.mark.parametrize(("src", "dst"), move_suite.SCALED_PAIRS)
def test_mean_takes_part(comm, src, dst):
    move_suite.check_transpose(comm, src, dst, (5, 3))


@pytest.mark.parametrize("dst", [Shard(0), Replicate(), Invariant()])
@pytest.mark.parametrize("op", ["max", "min"])
def test_extremum_sends_its_gradient_to_the_owner(comm, op, dst):
    for shape in move_suite.SHAPES:
        move_suite.check_extremum(comm, op, dst, shape)
