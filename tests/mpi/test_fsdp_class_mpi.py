"""FullyShardedDataParallel over MPI: bodies of tests/fsdp_class_suite.py."""

import functools

import fsdp_class_suite as suite
import fsdp_suite
import pytest

RANKS = (2, 3)

expected = functools.cache(functools.partial(fsdp_suite.alone, steps=6))
CHECKS = [
    suite.check_clipping,
    suite.check_default_ranks,
    suite.check_summon_of_some,
    suite.check_mixed_precision,
    suite.check_same_first_values,
    suite.check_state,
    suite.check_state_types,
    suite.check_sharded_optimizer_state,
    suite.check_refusals,
]


@pytest.mark.parametrize("strategy", suite.STRATEGIES)
def test_equals_one_process(world, strategy):
    suite.check_equals_one_process(world, strategy, expected())


@pytest.mark.parametrize("strategy", suite.STRATEGIES)
def test_counts(world, strategy):
    suite.check_counts(world, strategy)


@pytest.mark.parametrize("check", CHECKS)
def test_fsdp(world, check):
    check(world)
