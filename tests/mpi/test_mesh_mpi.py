"""Meshes of MPI ranks: the bodies of tests/mesh_suite.py."""

import sys
from pathlib import Path

import pytest
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[1]))

import mesh_suite

from hpcdist.comm.mpi.communicator import MpiCommunicator

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def comm():
    group = MpiCommunicator.adopt(MPI.COMM_WORLD, timeout_s=30)
    yield group
    group.free()


@pytest.mark.parametrize("check", mesh_suite.CHECKS)
def test_mesh(comm, check):
    check(comm)
