"""Rules of operations that signatures do not describe, on threads, 1 to 4 ranks."""

import pytest
import rules_suite

from hpcdist.comm.local import run


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize(("body", "given"), rules_suite.CASES)
def test_rules(size, body, given):
    run(size, body, *given)
