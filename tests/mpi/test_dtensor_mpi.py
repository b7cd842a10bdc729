"""Distributed tensors over MPI: the bodies of tests/dtensor_suite.py."""

import itertools

import dtensor_suite
import pytest

from hpcdist.comm import init_device_mesh

RANKS = (2, 3, 4)
CHECKS = [
    dtensor_suite.check_alone,
    dtensor_suite.check_b16,
    dtensor_suite.check_distribute_all,
    dtensor_suite.check_from_local_all,
    dtensor_suite.check_from_local_gradients,
    dtensor_suite.check_factories,
    dtensor_suite.check_dropout,
    dtensor_suite.check_chunks_all,
    dtensor_suite.check_reads,
    dtensor_suite.check_texts,
    dtensor_suite.check_mean,
]
OF_FOUR = [
    dtensor_suite.check_b09,
    dtensor_suite.check_b11,
    dtensor_suite.check_b17,
    dtensor_suite.check_b19,
    dtensor_suite.check_run_check,
]


@pytest.mark.parametrize("check", CHECKS)
def test_on_any_number_of_ranks(world, check):
    check(world)


@pytest.mark.parametrize("check", OF_FOUR)
def test_cases_of_four_ranks(world, check):
    if world.size == 4:
        check(world)


def test_arguments_that_differ_are_refused_everywhere(world):
    if world.size > 1:
        dtensor_suite.check_distribute_errors(world)


@pytest.mark.parametrize("shape", dtensor_suite.SHAPES)
def test_redistribute_on_one_axis(world, shape):
    mesh = init_device_mesh(world.size, "tp", world)
    for src in dtensor_suite.layouts(1):
        for dst in dtensor_suite.layouts(1):
            dtensor_suite.check_redistribute(mesh, shape, src, dst)
            dtensor_suite.check_async(mesh, shape, src, dst)


@pytest.mark.parametrize("turn", range(9))
def test_redistribute_on_two_axes(world, turn):
    """A third of all pairs, of every layout; threads take all of them."""
    mesh = init_device_mesh(dtensor_suite.MESHES[world.size][1], ("dp", "tp"), world)
    pairs = list(itertools.product(dtensor_suite.layouts(2), repeat=2))
    for src, dst in pairs[turn::28]:
        dtensor_suite.check_redistribute(mesh, (5, 7), src, dst)
