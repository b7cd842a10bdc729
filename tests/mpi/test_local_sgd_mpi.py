"""Local SGD over MPI: the bodies of tests/model_averaging_suite.py."""

import model_averaging_suite
import pytest

RANKS = (3,)


@pytest.mark.parametrize("check", model_averaging_suite.CHECKS, ids=lambda check: check.__name__)
def test_over_mpi(world, check):
    check(world)


def test_goes_on(world):
    model_averaging_suite.check_goes_on(world, *model_averaging_suite.saved_after_step_4(world))
