"""The post-local SGD hook on thread ranks: the bodies of tests/local_hook_suite.py."""

import local_hook_suite
import pytest

from hpcdist.comm import local
from hpcdist.parallel.comm_hooks import PostLocalSGDState


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("check", local_hook_suite.CHECKS, ids=lambda check: check.__name__)
def test_on_threads(check, size):
    local.run(size, check, timeout_s=20)


def test_goes_on_on_three_ranks():
    saved = local.run(2, local_hook_suite.saved_after, 5)[0]
    local.run(3, local_hook_suite.check_goes_on_on_other_ranks, saved, timeout_s=20)


def test_a_start_below_zero():
    with pytest.raises(ValueError, match="start_localSGD_iter"):
        PostLocalSGDState(None, None, -1)
