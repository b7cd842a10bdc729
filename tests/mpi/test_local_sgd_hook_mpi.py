"""The post-local SGD hook over MPI: the bodies of tests/local_sgd_suite.py."""

import local_sgd_suite
import pytest


@pytest.mark.parametrize("check", local_sgd_suite.CHECKS, ids=lambda check: check.__name__)
def test_over_mpi(world, check):
    check(world)
