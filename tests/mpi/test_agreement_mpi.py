"""Errors that ranks share, on MPI: the bodies of tests/agreement_suite.py."""

import pytest

pytest.register_assert_rewrite("agreement_suite")

import agreement_suite  # noqa: E402


@pytest.mark.parametrize("check", agreement_suite.CHECKS)
def test_agreement(world, check):
    check(world)
