"""Reductions over cut dimensions, and a cut vocabulary, over MPI: bodies of the suites of the same names."""

import numpy as np
import pytest
import reductions_suite as suite
import vocabulary_suite
from reductions_suite import INV, S0, S1

RANKS = (2, 3)


@pytest.mark.parametrize("name", suite.along(0, False))
def test_reductions(world, name):
    for dim, keepdim in ((0, False), (1, True), (None, False)):
        suite.check_reductions(world, name, dim, keepdim)


@pytest.mark.parametrize("name", suite.kept(0))
def test_results_of_the_same_shape(world, name):
    for dim in (0, 1):
        suite.check_kept(world, name, dim)


@pytest.mark.parametrize("name", suite.NORMS)
def test_norms_of_layers(world, name):
    suite.check_norms(world, name)


@pytest.mark.parametrize("check", ["b12", "zero", "ties", "integers", "large", "refusals"])
def test_edges(world, check):
    getattr(suite, f"check_{check}")(world)


@pytest.mark.parametrize("dtype", [*suite.HALVES, np.float32, np.complex128])
def test_dtypes(world, dtype):
    suite.check_dtypes(world, dtype)


@pytest.mark.parametrize("check", ["embedding", "embedding_refusals", "loss_rows", "loss_precision", "loss_refusals"])
def test_vocabulary(world, check):
    getattr(vocabulary_suite, f"check_{check}")(world)


@pytest.mark.parametrize("check", ["linear_classes", "linear_rows", "linear_refusals", "memory"])
def test_linear_layer(world, check):
    getattr(vocabulary_suite, f"check_{check}")(world)


def test_loss_of_cut_classes(world):
    vocabulary_suite.check_loss(world, (5,))


def test_two_axes(world):
    if world.size == 4:
        suite.check_two_axes(world, S0, S1, None)
        suite.check_two_axes(world, S1, INV, None)
        suite.check_partial(world)
    if world.size % 2 == 0:
        vocabulary_suite.check_embedding_two_axes(world)
        vocabulary_suite.check_loss_two_axes(world)
        vocabulary_suite.check_linear_two_axes(world)
