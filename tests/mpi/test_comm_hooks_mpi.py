"""Communication hooks over MPI: the bodies of tests/hooks_suite.py."""

import hooks_suite
import pytest

RANKS = (2, 3)


@pytest.mark.parametrize("check", hooks_suite.CHECKS, ids=lambda check: check.__name__)
def test_over_mpi(world, check):
    check(world)


@pytest.mark.parametrize("ranks", ["all", "last"])
@pytest.mark.parametrize("how", hooks_suite.WRONG)
def test_a_hook_that_fails(world, how, ranks):
    hooks_suite.check_fails(world, how, ranks)


def test_a_hook_that_blocks_where_another_raises(world):
    hooks_suite.check_blocks_where_another_rank_raises(world)
