"""The verbs on thread ranks; tests/mpi runs the same checks on MPI."""

import comm_suite
import pytest

from hpcdist.comm.local import run


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("check", comm_suite.CHECKS)
def test_verbs(check, size):
    run(size, check, timeout_s=20)
