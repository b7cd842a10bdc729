"""Optimizers in parts over MPI: the bodies of tests/zero_suite.py."""

import pytest
import zero_suite

RANKS = (2, 3)


@pytest.mark.parametrize(("kind", "form"), zero_suite.EQUAL[::3])
def test_equals_the_plain_optimizer(world, kind, form):
    zero_suite.check_equals_plain(world, kind, form)


@pytest.mark.parametrize("check", zero_suite.CHECKS, ids=lambda check: check.__name__)
def test_over_mpi(world, check):
    check(world)


@pytest.mark.parametrize("form", ["whole", "elements, buffer"])
@pytest.mark.parametrize("check", zero_suite.CHECKS_OF_FORMS, ids=lambda check: check.__name__)
def test_forms_over_mpi(world, check, form):
    check(world, form)


@pytest.mark.parametrize("form", ["whole", "elements"])
def test_a_state_goes_on(world, form):
    state = zero_suite.saved_after_three(world, form, as_parts=True)
    zero_suite.check_goes_on(world, form, state, "CAF")
