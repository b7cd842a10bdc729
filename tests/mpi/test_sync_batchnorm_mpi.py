"""SyncBatchNorm over MPI: the bodies of tests/syncbn_suite.py."""

import numpy as np
import pytest
import syncbn_suite

RANKS = (2, 3)


@pytest.mark.parametrize("how", ["even", "uneven", "empty"])
@pytest.mark.parametrize("shape", syncbn_suite.SHAPES, ids=str)
def test_equals_one_process(world, how, shape):
    syncbn_suite.check_equals_one_process(world, how, shape, np.float64, 0.1)


@pytest.mark.parametrize("check", syncbn_suite.CHECKS, ids=lambda check: check.__name__)
def test_over_mpi(world, check):
    check(world)
