"""FullyShardedDataParallel on thread ranks: the bodies of tests/fsdp_class_suite.py."""

import functools

import fsdp_class_suite as suite
import pytest

from hpcdist.comm.local import run

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
STRATEGIES = pytest.mark.parametrize("strategy", suite.STRATEGIES)
saved = functools.cache(lambda size, named: run(size, suite.saved, named)[0])


@SIZES
@STRATEGIES
def test_equals_one_process(size, strategy):
    run(size, suite.check_equals_one_process, strategy, suite.alone())


@SIZES
@STRATEGIES
def test_counts(size, strategy):
    run(size, suite.check_counts, strategy)


@SIZES
@STRATEGIES
def test_shares(size, strategy):
    run(size, suite.check_shares, strategy)


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"])
def test_accumulation(size, strategy):
    run(size, suite.check_accumulation, strategy, suite.alone(2))


@pytest.mark.parametrize("size", [1, 3])
def test_wrapped_by_hand(size):
    run(size, suite.check_wrapped_by_hand, suite.alone())


@pytest.mark.parametrize("size", [2, 4])
def test_pair_of_groups(size):
    run(size, suite.check_pair_of_groups, suite.alone())


@SIZES
@STRATEGIES
def test_summon(size, strategy):
    run(size, suite.check_summon, strategy)


@pytest.mark.parametrize(("before", "after", "named"), [(1, 3, True), (3, 2, False), (4, 1, True)])
def test_optimizer_state(before, after, named):
    run(after, suite.check_optimizer_state, saved(before, named))


one = functools.cache(lambda: run(1, suite.bits, "FULL_SHARD", reproducible=True)[0])


@pytest.mark.parametrize("size", [2, 3, 4])
@STRATEGIES
def test_reproducible(size, strategy):
    assert run(size, suite.bits, strategy, reproducible=True) == [one()] * size


@SIZES
@pytest.mark.parametrize("check", suite.CHECKS)
def test_fsdp(size, check):
    run(size, check)
