"""Activation checkpointing over MPI: the bodies of tests/recompute_suite.py."""

import pytest
import recompute_suite

RANKS = (2, 3)
both = pytest.mark.parametrize("sequence_parallel", [False, True])


@pytest.mark.parametrize("choice", recompute_suite.CHOICES)
@pytest.mark.parametrize("way", ["after", "ahead", "whole model"])
def test_sharded(world, way, choice):
    recompute_suite.check_sharded(world, way, choice)


def test_two_forwards(world):
    recompute_suite.check_two_forwards(world)


def test_memory(world):
    recompute_suite.check_memory(world)


@pytest.mark.parametrize("way", ["of two", "within"])
def test_ranks_without_gradients(world, way):
    recompute_suite.check_ranks_without_gradients(world, way)


def test_part_of_a_unit(world):
    recompute_suite.check_part_of_a_unit(world)


def test_errors(world):
    recompute_suite.check_errors(world)


def test_replicated(world):
    recompute_suite.check_replicated(world, "both")


@both
def test_collectives_run_again(world, sequence_parallel):
    recompute_suite.check_collectives_run_again(world, sequence_parallel)


def test_distributed_dropout(world):
    recompute_suite.check_distributed_dropout(world)
