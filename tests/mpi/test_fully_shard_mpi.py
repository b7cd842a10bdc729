"""fully_shard over MPI: bodies of tests/fsdp_suite.py, fsdp_options_suite.py and fsdp_edges_suite.py."""

import functools

import fsdp_cases_suite
import fsdp_edges_suite
import fsdp_options_suite
import fsdp_suite
import pytest

RANKS = (2, 3, 4)
STEPS = 6
expected = functools.cache(functools.partial(fsdp_suite.alone, steps=STEPS))


@pytest.mark.parametrize("way", ["blocks", "last dimension", "ahead"])
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


@pytest.mark.parametrize("check", fsdp_suite.CHECKS)
def test_fully_shard(world, check):
    check(world)


def test_neighbours(world):
    if world.size == 4:
        fsdp_options_suite.check_neighbours(world, expected())


def test_rounded_parameters(world):
    fsdp_options_suite.check_rounded_parameters(world, True, fsdp_options_suite.BFLOAT16)


@pytest.mark.parametrize("name", ["units twice", "two forwards, two backwards", "grad of parameters"])
def test_program(world, name):
    fsdp_edges_suite.check_program(world, name)


def test_failing_hooks(world):
    fsdp_edges_suite.check_failing_hooks(world)


def test_units_in_another_order(world):
    fsdp_edges_suite.check_units_in_another_order(world)


@pytest.mark.parametrize("check", fsdp_cases_suite.CHECKS, ids=lambda check: check.__name__)
def test_cases(world, check):
    check(world)
