"""The tree over micro-batches: any way to share leaves out gives the bits of one holder of all."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.parallel.tree import Stack, blocks, total


def recursive(leaves):
    """Return the root by its definition: halves at powers of two, the right one may be missing."""

    def value(level, index):
        start = index << level
        if level == 0:
            return leaves[start]
        left, middle = value(level - 1, 2 * index), start + (1 << (level - 1))
        return left + value(level - 1, 2 * index + 1) if middle < len(leaves) else left

    return value((len(leaves) - 1).bit_length(), 0)


def leaves_of(n, seed, width=3):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, width)) * 10.0 ** rng.integers(-3, 4, (n, 1))).astype(np.float32)


@given(st.integers(1, 70), st.data())
@settings(deadline=None)
def test_any_runs_give_the_bits_of_the_definition(n, data):
    """Runs may be empty, and are added up apart; only their nodes are put together."""
    leaves = leaves_of(n, data.draw(st.integers(0, 9)))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    whole = Stack()
    for start, stop in zip([0, *cuts], [*cuts, n], strict=True):
        part = Stack()
        for index in range(start, stop):
            part.read(index, leaves[index])
        assert [node[:2] for node in part.nodes] == blocks(start, stop)
        assert len(part.nodes) <= 2 * max(stop - start, 1).bit_length()
        for node in part.nodes:
            whole.push(*node)
    np.testing.assert_array_equal(whole.finish(), recursive(leaves))
    assert whole.nodes == []


def test_the_order_matters_for_these_leaves():
    """Else the tests here would show nothing."""
    leaves = leaves_of(12, 0)
    fold = leaves[0].copy()
    for leaf in leaves[1:]:
        fold += leaf
    assert (fold != recursive(leaves)).any()


@given(st.integers(0, 200), st.integers(0, 200))
def test_blocks_are_whole_subtrees_and_cover_the_run(a, b):
    start, stop = min(a, b), max(a, b)
    covered = [i for level, index in blocks(start, stop) for i in range(index << level, (index + 1) << level)]
    assert covered == list(range(start, stop))
    assert all((index << level) + (1 << level) <= stop for level, index in blocks(start, stop))


def test_a_leaf_is_read_and_not_kept():
    stack, leaf = Stack(), np.ones(4, np.float32)
    for index in range(5):
        leaf[...] = index
        stack.read(index, leaf)
    assert len(stack.nodes) == 2
    np.testing.assert_array_equal(stack.finish(), [10.0] * 4)
    np.testing.assert_array_equal(leaf, [4.0] * 4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_leaves_are_added_up_in_float32(dtype):
    stack = Stack()
    for index in range(1024):
        stack.read(index, np.full(2, 1 + index / 1024, dtype))
    found = stack.finish()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, sum(float(dtype(1 + i / 1024)) for i in range(1024)))


def test_leaves_come_in_order():
    stack = Stack()
    stack.push(0, 0, 1.0)
    with pytest.raises(ValueError, match="next leaf") as error:
        stack.push(0, 2, 1.0)
    assert "expected 1" in str(error.value)


def test_numbers():
    numbers = [1e16, 1.0, -1e16, 1.0, 3.0]
    assert total(numbers) == ((1e16 + 1.0) + (-1e16 + 1.0)) + 3.0
