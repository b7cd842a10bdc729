"""Errors that ranks share, on threads: the bodies of tests/agreement_suite.py."""

import pytest

pytest.register_assert_rewrite("agreement_suite")

import agreement_suite  # noqa: E402

from hpcdist.comm.local import run  # noqa: E402


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("check", agreement_suite.CHECKS)
def test_agreement(check, size):
    run(size, check)
