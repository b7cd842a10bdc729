"""Ranks of a group as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdist.comm.members import members_of, name_members


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([0, 1, 2, 3], "0-3"), ([0, 2, 5], "0,2,5"), ([3, 2], "3,2"), ([7], "7"), ([0, 1, 4, 5, 6], "0-1,4-6")],
)
def test_text_of_ranks(ranks, text):
    assert name_members(ranks) == text
    assert members_of(text) == members_of(text + "#2") == ranks


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12, unique=True))
def test_back_again(ranks):
    assert members_of(name_members(ranks)) in (ranks, [])


def test_long_lists_differ_by_a_checksum():
    ones, others = (name_members(range(start, 1000, 3)) for start in (0, 1))
    assert ones != others
    assert ones.startswith("334 ranks, ")
    assert max(map(len, (ones, others))) < 40
    assert members_of(ones) == []
