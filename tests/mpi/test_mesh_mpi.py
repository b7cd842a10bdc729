"""Meshes of MPI ranks: the bodies of tests/mesh_suite.py."""

import mesh_suite
import pytest


@pytest.mark.parametrize("check", mesh_suite.CHECKS)
def test_mesh(world, check):
    check(world)
