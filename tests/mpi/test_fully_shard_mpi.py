"""fully_shard over MPI: the bodies of tests/fsdp_suite.py."""

import functools

import fsdp_suite
import pytest

STEPS = 6
expected = functools.cache(functools.partial(fsdp_suite.alone, steps=STEPS))


@pytest.mark.parametrize("way", ["blocks", "root only", "last dimension", "ahead", "groups"])
def test_equals_one_process(world, way):
    fsdp_suite.check_equals_one_process(world, way, expected())


def test_copies_of_shards(world):
    if world.size % 2 == 0:
        fsdp_suite.check_copies_of_shards(world, expected())


def test_accumulation(world):
    fsdp_suite.check_accumulation(world, expected(2))


@pytest.mark.parametrize("apart", [False, True])
def test_tied_parameters(world, apart):
    fsdp_suite.check_tied_parameters(world, apart)


@pytest.mark.parametrize("apart", [False, True])
def test_used_on_some_ranks(world, apart):
    fsdp_suite.check_used_on_some_ranks(world, apart)


@pytest.mark.parametrize(
    "check",
    [
        fsdp_suite.check_counts,
        fsdp_suite.check_whole_weights_are_freed,
        fsdp_suite.check_memory,
        fsdp_suite.check_odd_parameters,
        fsdp_suite.check_frozen,
        fsdp_suite.check_micro_steps,
        fsdp_suite.check_errors_leave_the_model_usable,
        fsdp_suite.check_refusals,
    ],
)
def test_fully_shard(world, check):
    check(world)
