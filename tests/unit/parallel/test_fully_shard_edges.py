"""Unusual programs with fully_shard on thread ranks: the bodies of tests/fsdp_edges_suite.py."""

import fsdp_edges_suite as suite
import pytest

from hpcdist.comm.local import run

SIZES = pytest.mark.parametrize("size", [1, 3])


@SIZES
@pytest.mark.parametrize("name", suite.PROGRAMS)
def test_program(name, size):
    run(size, suite.check_program, name)


@SIZES
@pytest.mark.parametrize(
    "check",
    [
        suite.check_shared_module,
        suite.check_views_are_not_kept,
        suite.check_result_that_is_a_parameter,
        suite.check_values_are_those_of_now,
        suite.check_last_backward,
        suite.check_failing_hooks,
        suite.check_zero_grad,
        suite.check_failing_backward_forgets_all,
        suite.check_what_is_replaced,
        suite.check_units_in_another_order,
        suite.check_whole_parameters_are_freed,
        suite.check_model_is_freed,
        suite.check_sharded_later,
    ],
)
def test_edges(size, check):
    run(size, check)


@SIZES
@pytest.mark.parametrize("place", ["first", "shard", "last"])
@pytest.mark.parametrize("syncs", [True, False])
def test_failing_on_one_rank(size, place, syncs):
    run(size, suite.check_failing_on_one_rank, place, syncs, timeout_s=10)
