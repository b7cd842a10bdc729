"""Cases of fully_shard on thread ranks: the bodies of tests/fsdp_cases_suite.py."""

import fsdp_cases_suite
import pytest

from hpcdist.comm.local import run


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("check", fsdp_cases_suite.CHECKS, ids=lambda check: check.__name__)
def test_cases(check, size):
    run(size, check)
