"""Communication hooks on thread ranks: the bodies of tests/hooks_suite.py."""

import hooks_suite
import pytest

from hpcdist.comm import local
from hpcdist.parallel import comm_hooks, replicate

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])


@SIZES
@pytest.mark.parametrize("check", hooks_suite.CHECKS, ids=lambda check: check.__name__)
def test_on_threads(check, size):
    local.run(size, check, timeout_s=20)


@SIZES
@pytest.mark.parametrize("ranks", ["all", "first", "last"])
@pytest.mark.parametrize("how", hooks_suite.WRONG)
def test_a_hook_that_fails(how, ranks, size):
    local.run(size, hooks_suite.check_fails, how, ranks, timeout_s=20)


@pytest.mark.parametrize("size", [2, 4])
def test_a_hook_that_blocks_where_another_raises(size):
    local.run(size, hooks_suite.check_blocks_where_another_rank_raises, timeout_s=5)


def test_sums_of_a_reproducible_run_are_its_own():
    def main(comm):
        replica = replicate(hooks_suite.mlp(), comm)
        with pytest.raises(RuntimeError, match="reproducible"):
            replica.register_comm_hook(None, comm_hooks.allreduce_hook)

    local.run(2, main, reproducible=True)
