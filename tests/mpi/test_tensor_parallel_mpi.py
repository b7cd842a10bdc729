"""Tensor parallelism over MPI: the bodies of tests/tp_suite.py."""

import pytest
import tp_suite

RANKS = (2, 3, 4)
both = pytest.mark.parametrize("sequence_parallel", [False, True])


@pytest.mark.parametrize("name", tp_suite.GPTS)
def test_losses_are_those_of_one_process(world, name):
    tp_suite.check_losses(world, name, sequence_parallel=True)


def test_losses_without_sequence_parallel(world):
    tp_suite.check_losses(world, "gelu-layer-rotary", sequence_parallel=False)


def test_losses_with_data_parallelism(world):
    if world.size % 2 == 0:
        tp_suite.check_with_data_parallel(world, "gelu-layer-rotary")


@both
def test_collectives_of_a_block(world, sequence_parallel):
    tp_suite.check_counts(world, "swiglu-rms-learned", sequence_parallel)


def test_features_that_ranks_do_not_divide(world):
    tp_suite.check_uneven(world)


def test_inputs_are_compared_in_check_mode(world):
    tp_suite.check_inputs_compared(world.dup(check=True))
