"""Activation checkpointing on thread ranks: the bodies of tests/recompute_suite.py."""

import pytest
import recompute_suite

from hpcdist.comm.local import run

SIZES = pytest.mark.parametrize("size", [1, 4])
CHOICES = pytest.mark.parametrize("choice", recompute_suite.CHOICES)
both = pytest.mark.parametrize("sequence_parallel", [False, True])


@CHOICES
@pytest.mark.parametrize("way", recompute_suite.WAYS)
def test_sharded(way, choice):
    run(3, recompute_suite.check_sharded, way, choice)


@pytest.mark.parametrize("way", recompute_suite.WAYS)
def test_sharded_to_one(way):
    run(1, recompute_suite.check_sharded, way, "both")


@pytest.mark.parametrize("size", [1, 3])
def test_two_forwards(size):
    run(size, recompute_suite.check_two_forwards)


@SIZES
def test_memory(size):
    run(size, recompute_suite.check_memory)


@SIZES
@pytest.mark.parametrize("way", ["of two", "within"])
def test_ranks_without_gradients(size, way):
    run(size, recompute_suite.check_ranks_without_gradients, way)


@SIZES
def test_part_of_a_unit(size):
    run(size, recompute_suite.check_part_of_a_unit)


@pytest.mark.parametrize("size", [2, 4])
def test_other_axes(size):
    run(size, recompute_suite.check_other_axes)


@pytest.mark.parametrize("size", [1, 2])
def test_errors(size):
    run(size, recompute_suite.check_errors)


@CHOICES
@pytest.mark.parametrize("size", [1, 3])
def test_replicated(choice, size):
    run(size, recompute_suite.check_replicated, choice)


@both
@SIZES
def test_collectives_run_again(size, sequence_parallel):
    run(size, recompute_suite.check_collectives_run_again, sequence_parallel)


@both
@pytest.mark.parametrize("size", [1, 3])
def test_collectives_that_are_kept(size, sequence_parallel):
    run(size, recompute_suite.check_collectives_that_are_kept, sequence_parallel)


@SIZES
def test_distributed_dropout(size):
    run(size, recompute_suite.check_distributed_dropout)
