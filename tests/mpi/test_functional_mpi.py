"""Collectives with gradients over MPI: the bodies of tests/functional_suite.py."""

import functional_suite
import pytest

RANKS = (2, 3, 4)

cases = pytest.mark.parametrize("name", functional_suite.CASES)
extrema = pytest.mark.parametrize("name", functional_suite.EXTREMA)


@cases
def test_values_gradients_and_collectives(world, name):
    functional_suite.check_values_gradients_and_collectives(world, name)


@cases
def test_dtypes(world, name):
    functional_suite.check_dtypes(world, name)


@extrema
@pytest.mark.parametrize(
    "check", [functional_suite.check_extrema, functional_suite.check_products, functional_suite.check_bits]
)
def test_combinations(world, name, check):
    check(world, name)


@pytest.mark.parametrize("check", functional_suite.CHECKS)
def test_functional(world, check):
    check(world)
