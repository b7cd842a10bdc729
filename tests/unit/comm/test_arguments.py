"""Checks of arguments that need no other rank."""

import itertools

import numpy as np

from hpcdist.comm.arguments import overlap


def test_overlap_is_what_numpy_finds_for_every_pair():
    """Parts of one memory of twelve numbers, in one piece each, against NumPy's answer for each pair."""
    memory = np.arange(12.0)
    parts = [memory[i : i + n] for i, n in itertools.product(range(0, 12, 2), (0, 1, 3))]
    lists = [list(pair) for pair in itertools.combinations(parts, 2)]
    found = {True: 0, False: 0}
    for xs, ys in itertools.product(lists[::3], lists[::5]):
        expected = any(np.shares_memory(x, y) for x in xs for y in ys)
        assert overlap(xs, ys) is expected
        found[expected] += 1
    assert min(found.values()) > 100
    assert not overlap(parts, [x.copy() for x in parts])
    assert not overlap([], parts)
