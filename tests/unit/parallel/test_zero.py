"""Optimizers in parts, on thread ranks: the bodies of tests/zero_suite.py."""

import numpy as np
import pytest
import zero_suite

from hpcdist import optim
from hpcdist.autograd import Tensor
from hpcdist.comm import local
from hpcdist.comm.local import solo
from hpcdist.parallel import ZeroRedundancyOptimizer
from hpcdist.parallel.zero_row import deal_elements, deal_whole

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
FORMS = pytest.mark.parametrize("form", zero_suite.FORMS)


@SIZES
@pytest.mark.parametrize(("kind", "form"), zero_suite.EQUAL)
def test_equals_the_plain_optimizer(kind, form, size):
    local.run(size, zero_suite.check_equals_plain, kind, form)


@FORMS
def test_gradients_in_parts(form):
    local.run(3, zero_suite.check_equals_plain, "adamw", form, 2)


@SIZES
@pytest.mark.parametrize("check", zero_suite.CHECKS, ids=lambda check: check.__name__)
def test_on_threads(check, size):
    local.run(size, check, timeout_s=20)


@SIZES
@FORMS
@pytest.mark.parametrize("check", zero_suite.CHECKS_OF_FORMS, ids=lambda check: check.__name__)
def test_forms_on_threads(check, form, size):
    local.run(size, check, form, timeout_s=20)


@FORMS
def test_bits_do_not_depend_on_the_number_of_ranks(form):
    found = [
        weights
        for size in (1, 2, 3, 4)
        for weights in local.run(size, zero_suite.check_reproducible, form, reproducible=True)
    ]
    assert all(weights == found[0] for weights in found)


@pytest.mark.parametrize("to", [1, 2, 4])
@pytest.mark.parametrize("form", ["whole", "elements"])
@pytest.mark.parametrize("as_parts", [False, True])
def test_a_state_of_three_ranks_goes_on_at_another_number(as_parts, form, to):
    state = local.run(3, zero_suite.saved_after_three, form, as_parts)[0]
    for order in ("AFC", "CAF"):
        local.run(to, zero_suite.check_goes_on, form, state, order)
    other = {"whole": "elements", "elements": "whole"}[form]
    local.run(to, zero_suite.check_goes_on, other, state, "AFC")


def test_a_state_of_the_plain_optimizer_is_a_whole_one():
    params, state = zero_suite.plain("adam")
    values = {n: Tensor(p.data.copy(), p.requires_grad) for n, p in params.items()}
    alone = optim.Adam(zero_suite.groups(params), **zero_suite.KINDS["adam"][1])
    alone.load_state_dict(state)
    later, optimizer = zero_suite.zero(solo(), "adam", "elements", values)
    optimizer.load_state_dict(state)
    zero_suite.steps(alone, params, [7])
    zero_suite.steps(optimizer, later, [7])
    zero_suite.assert_same_bits(later, params)


def test_state_that_ranks_do_not_all_have_is_no_whole():
    def main(comm):
        p = Tensor(np.ones(4), True)
        optimizer = ZeroRedundancyOptimizer([("w", p)], optim.AdamW, comm, elementwise=True)
        p.grad = np.ones(4) if comm.rank else None
        optimizer.step()
        with pytest.raises(ValueError, match="the state of w: ranks keep different things"):
            optimizer.consolidate_state_dict()

    local.run(2, main)


def test_whole_parameters_go_to_the_rank_that_has_least():
    named = [(str(n), Tensor(np.ones(n), True)) for n in (3, 9, 4, 4, 0, 1)]
    loads = [0, 2, 0]
    dealt = [[share.name for share in of_rank] for of_rank in deal_whole(named, loads)]
    assert dealt == [["9"], ["4", "1", "0"], ["4", "3"]]
    assert loads == [9, 7, 7]


@pytest.mark.parametrize("sizes", [(3, 9, 4), (0, 1, 0, 1), (1,), (0,), (5, 5)])
@SIZES
def test_elements_are_dealt_out_evenly_and_in_order(sizes, size):
    named = [(str(i), Tensor(np.ones(n), True)) for i, n in enumerate(sizes)]
    dealt = deal_elements(named, size)
    elements = [[(s.name, i) for s in of_rank for i in range(s.start, s.stop)] for of_rank in dealt]
    assert [e for of_rank in elements for e in of_rank] == [(str(i), j) for i, n in enumerate(sizes) for j in range(n)]
    assert max(map(len, elements)) - min(map(len, elements)) <= 1
