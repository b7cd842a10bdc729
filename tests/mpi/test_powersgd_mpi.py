"""PowerSGD over MPI: the bodies of tests/powersgd_suite.py."""

import powersgd_suite
import pytest

RANKS = (3,)


@pytest.mark.parametrize("options", powersgd_suite.OPTIONS[::5], ids=lambda o: "-".join(map(str, o.values())))
def test_equals_numpy(world, options):
    powersgd_suite.check_equals_numpy(world, options)


@pytest.mark.parametrize("check", powersgd_suite.CHECKS, ids=lambda check: check.__name__)
def test_over_mpi(world, check):
    check(world)
