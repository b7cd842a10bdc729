"""The verbs on threads: the bodies of tests/comm_suite.py."""

import comm_suite
import pytest

from hpcdist.comm.local import run


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("check", comm_suite.CHECKS)
def test_verbs(check, size):
    run(size, check)
