"""Local SGD over MPI: the bodies of tests/local_sgd_suite.py."""

import local_sgd_suite
import pytest


@pytest.mark.parametrize("check", local_sgd_suite.CHECKS, ids=lambda check: check.__name__)
def test_over_mpi(world, check):
    check(world)


def test_goes_on(world):
    local_sgd_suite.check_goes_on(world, *local_sgd_suite.saved_after_step_4(world))
