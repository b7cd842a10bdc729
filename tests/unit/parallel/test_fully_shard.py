"""fully_shard on thread ranks: the bodies of tests/fsdp_suite.py."""

import functools

import fsdp_suite
import pytest

from hpcdist.comm.local import run

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
expected = functools.cache(fsdp_suite.alone)


@SIZES
def test_equals_one_process(size):
    run(size, fsdp_suite.check_equals_one_process, "blocks", expected())


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("way", fsdp_suite.WAYS)
def test_other_ways_equal_one_process(way, size):
    run(size, fsdp_suite.check_equals_one_process, way, expected(steps=6))


@pytest.mark.parametrize("size", [2, 4])
def test_copies_of_shards(size):
    run(size, fsdp_suite.check_copies_of_shards, expected())


@SIZES
def test_accumulation(size):
    run(size, fsdp_suite.check_accumulation, expected(2))


@SIZES
@pytest.mark.parametrize("apart", [False, True])
def test_tied_parameters(size, apart):
    run(size, fsdp_suite.check_tied_parameters, apart)


@SIZES
@pytest.mark.parametrize("apart", [False, True])
def test_used_on_some_ranks(size, apart):
    run(size, fsdp_suite.check_used_on_some_ranks, apart)


@SIZES
@pytest.mark.parametrize("check", fsdp_suite.CHECKS)
def test_fully_shard(size, check):
    run(size, check)
