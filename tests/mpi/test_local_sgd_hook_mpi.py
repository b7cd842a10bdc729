"""The post-local SGD hook over MPI: the bodies of tests/local_hook_suite.py."""

import local_hook_suite
import pytest

RANKS = (2,)


@pytest.mark.parametrize("check", local_hook_suite.CHECKS, ids=lambda check: check.__name__)
def test_over_mpi(world, check):
    check(world)
