"""Replicated training over MPI: the bodies of tests/ddp_suite.py."""

import ddp_suite
import pytest

RANKS = (2, 3, 4)


def test_equals_one_process(world):
    ddp_suite.check_equals_one_process(world, ddp_suite.losses_alone())


@pytest.mark.parametrize("check", ddp_suite.CHECKS, ids=lambda check: check.__name__)
def test_over_mpi(world, check):
    check(world)


@pytest.mark.parametrize("factor", [None, 7])
@pytest.mark.parametrize("pattern", ddp_suite.PATTERNS)
def test_when_gradients_are_reduced(world, pattern, factor):
    ddp_suite.check_pattern(world, pattern, factor)


@pytest.mark.parametrize("named", ddp_suite.CHANGES)
def test_models_that_differ(world, named):
    ddp_suite.check_models_that_differ(world, named, True)
