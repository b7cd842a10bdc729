"""SyncBatchNorm on thread ranks: the bodies of tests/syncbn_suite.py."""

import numpy as np
import pytest
import syncbn_suite

from hpcdist.autograd import Tensor
from hpcdist.comm import local
from hpcdist.parallel import SyncBatchNorm

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])


@SIZES
@pytest.mark.parametrize("how", ["even", "uneven", "empty"])
@pytest.mark.parametrize("shape", syncbn_suite.SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "momentum"), [(np.float64, 0.1), (np.float64, None), (np.float32, 0.1)])
def test_equals_one_process(how, shape, dtype, momentum, size):
    local.run(size, syncbn_suite.check_equals_one_process, how, shape, dtype, momentum, timeout_s=20)


@SIZES
@pytest.mark.parametrize("check", syncbn_suite.CHECKS, ids=lambda check: check.__name__)
def test_on_threads(check, size):
    local.run(size, check, timeout_s=20)


def test_reproducible_runs_refuse_it():
    def main(comm):
        norm = SyncBatchNorm(3, process_group=comm)
        with pytest.raises(RuntimeError, match="GroupNorm"):
            norm(Tensor(np.ones((2, 3), np.float32)))

    local.run(2, main, reproducible=True)
