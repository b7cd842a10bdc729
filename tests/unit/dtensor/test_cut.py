"""The runs that ranks hold of a dimension, and arrays taken along them."""

import numpy as np
import pytest

from hpcdist.dtensor import Shard
from hpcdist.dtensor.cut import cut, join, put, shared, take

X = np.arange(14).reshape(2, 7)


def test_a_plain_cut():
    held = cut(Shard(0), 4, 3)
    assert held.runs == (((0, 2),), ((2, 4),), ())
    assert held.sizes == (2, 2, 0)
    assert held.order == ((0, 4),)
    assert held.ordered


def test_sections_are_not_in_the_order_of_the_whole():
    held = cut(Shard(0, sections=(4, 3)), 7, 2)
    assert held.runs == (((0, 2), (4, 6)), ((2, 4), (6, 7)))
    assert held.order == ((0, 2), (4, 6), (2, 4), (6, 7))
    assert not held.ordered


@pytest.mark.parametrize(
    ("placement", "size"), [(Shard(0, sections=(4, 2)), 1), (Shard(0, sections=(0, 6)), 2), (Shard(0, unit=3), 2)]
)
def test_equal_cuts_have_equal_runs(placement, size):
    assert cut(placement, 6, size) == cut(Shard(0), 6, size)
    assert cut(placement, 6, size).ordered


def test_nothing_to_cut():
    assert cut(Shard(0, sections=(0, 0)), 0, 2) == (((), ()), (0, 0), (), True)


@pytest.mark.parametrize("runs", [(), ((2, 5),), ((0, 2), (4, 7))])
def test_take_and_put(runs):
    picked = [i for run in runs for i in range(*run)]
    taken = take(X, 1, runs)
    np.testing.assert_array_equal(taken, X[:, picked])
    whole = np.zeros_like(X)
    put(whole, 1, runs, taken)
    np.testing.assert_array_equal(whole, np.where(np.isin(np.arange(7), picked), X, 0))


def test_one_run_is_a_view():
    assert np.shares_memory(take(X, 1, ((2, 5),)), X)


def test_join_puts_in_order():
    runs = cut(Shard(1, sections=(4, 3)), 7, 3).runs
    np.testing.assert_array_equal(join([take(X, 1, held) for held in runs], 1, runs), X)
    empty = np.zeros((2, 0))
    assert join([empty, empty], 1, [(), ()]).shape == (2, 0)


def test_shared_runs():
    held, wanted = ((0, 2), (4, 6)), ((1, 5),)
    assert shared(held, wanted) == (((1, 2), (4, 5)), ((1, 2), (2, 3)))
    assert shared(held, ((2, 4),)) == ((), ())
