"""Rules of operations that signatures do not describe, over MPI: the bodies of tests/rules_suite.py."""

import pytest
import rules_suite

RANKS = (2, 3)


@pytest.mark.parametrize(("body", "given"), rules_suite.CASES)
def test_rules(world, body, given):
    body(world, *given)
