"""The redistribution table over MPI: the bodies of tests/move_suite.py."""

import ml_dtypes
import move_suite
import numpy as np
import pytest

from hpcdist.dtensor import Invariant, Replicate, Shard

pairs = pytest.mark.parametrize(("src", "dst"), move_suite.PAIRS)


@pairs
def test_values_layout_and_collectives(world, src, dst):
    for shape in move_suite.SHAPES:
        move_suite.check_values(world, src, dst, shape, np.float32)


@pairs
def test_dtypes(world, src, dst):
    for dtype in (np.float64, np.complex64, np.int64, np.float16, ml_dtypes.bfloat16):
        move_suite.check_values(world, src, dst, (5, 7), dtype)


@pairs
def test_the_table_is_its_own_transpose(world, src, dst):
    for shape in move_suite.SHAPES:
        move_suite.check_transpose(world, src, dst, shape)


@pairs
def test_gradients_move_the_transposed_way(world, src, dst):
    for shape in move_suite.SHAPES:
        move_suite.check_gradient(world, src, dst, shape)


@pytest.mark.parametrize(("shape", "src", "dst"), move_suite.CUT_MOVES)
def test_units_and_sections(world, shape, src, dst):
    move_suite.check_move(world, src, dst, shape)


@pytest.mark.parametrize(("src", "dst"), move_suite.SCALED_PAIRS)
def test_mean_takes_part(world, src, dst):
    move_suite.check_transpose(world, src, dst, (5, 3))


@pytest.mark.parametrize("dst", [Shard(0), Replicate(), Invariant()])
@pytest.mark.parametrize("op", ["max", "min"])
def test_extremum_sends_its_gradient_to_the_owner(world, op, dst):
    for shape in move_suite.SHAPES:
        move_suite.check_extremum(world, op, dst, shape)
