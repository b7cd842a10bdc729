"""Placements, duals and the chunk rule."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from hpcdist.dtensor import Invariant, Partial, Replicate, Shard, chunk_range, chunk_sizes, dual, local_shape
from hpcdist.dtensor.placements import Share


@pytest.mark.parametrize(
    ("n", "size", "sizes"),
    [(4, 3, [2, 2, 0]), (7, 3, [3, 3, 1]), (2, 3, [1, 1, 0]), (0, 2, [0, 0]), (5, 1, [5]), (10, 4, [3, 3, 3, 1])],
)
def test_chunks_as_torch(n, size, sizes):
    assert chunk_sizes(n, size) == sizes
    ends = np.cumsum([0, *sizes])
    assert [chunk_range(n, size, c) for c in range(size)] == list(itertools.pairwise(ends))


def test_predicates():
    assert Shard(1).is_shard()
    assert Shard(1).is_shard(1)
    assert not Shard(1).is_shard(0)
    assert Replicate().is_replicate()
    assert not Invariant().is_replicate()
    assert Invariant().is_invariant()
    assert Partial().is_partial()
    assert Partial("max").is_partial("max")
    assert not Partial("max").is_partial("sum")


def test_equality_and_hash():
    assert Shard(0) == Shard(0) != Shard(1)
    assert len({Replicate(), Replicate(), Invariant(), Partial(), Partial("sum"), Partial("avg")}) == 4
    assert (
        len({Shard(0), Shard(0, unit=1), Shard(0, unit=2), Shard(0, sections=(4, 4)), Shard(0, sections=[4, 4])}) == 3
    )
    assert Shard(0, unit=(2, 2), sections=(4, 4)) == Shard(0, unit=2, sections=(4, 4))
    assert Shard(np.int64(0), unit=np.int8(2)) == Shard(0, unit=2)


@pytest.mark.parametrize(
    ("shard", "text"),
    [
        (Shard(0), "Shard(0)"),
        (Shard(-1), "Shard(-1)"),
        (Shard(1, unit=6), "Shard(1, unit=6)"),
        (Shard(0, sections=(4, 4)), "Shard(0, sections=(4, 4))"),
        (Shard(0, unit=(2, 1), sections=(4, 3)), "Shard(0, unit=(2, 1), sections=(4, 3))"),
    ],
)
def test_repr_is_the_call(shard, text):
    assert repr(shard) == text
    assert eval(text) == shard


@pytest.mark.parametrize("unit", [0, -2, (2, 0), (), (1, 2, 3), (2,)])
def test_units_out_of_bounds(unit):
    with pytest.raises(ValueError, match="Shard: unit"):
        Shard(0, unit=unit, sections=(4, 4))


def test_many_units_need_sections():
    with pytest.raises(ValueError, match="one for each of the sections"):
        Shard(0, unit=(2, 1))


@pytest.mark.parametrize("wrong", [True, 1.0, "2", None, (True, 1), (2, 1.0)])
def test_units_that_are_no_integers(wrong):
    with pytest.raises(TypeError, match="Shard: unit"):
        Shard(0, unit=wrong, sections=(4, 4))


def test_sections_that_are_none():
    with pytest.raises(ValueError, match=r"Shard: sections\n  got      -1\n  expected an integer of at least 0"):
        Shard(0, sections=(4, -1))
    for wrong in (4, (4, True), (4.0,), "44"):
        with pytest.raises(TypeError, match="Shard: sections"):
            Shard(0, sections=wrong)


@pytest.mark.parametrize("dim", [True, 0.0, "0", None])
def test_dims_that_are_no_integers(dim):
    with pytest.raises(TypeError, match="Shard: dim"):
        Shard(dim)


@pytest.mark.parametrize(
    ("shard", "n", "size", "ranges"),
    [
        (Shard(0), 7, 3, [[(0, 3)], [(3, 6)], [(6, 7)]]),
        (Shard(0), 0, 2, [[(0, 0)], [(0, 0)]]),
        (Shard(0, unit=2), 6, 2, [[(0, 4)], [(4, 6)]]),
        (Shard(0, unit=4), 12, 4, [[(0, 4)], [(4, 8)], [(8, 12)], [(12, 12)]]),
        (Shard(0, sections=(4, 3)), 7, 2, [[(0, 2), (4, 6)], [(2, 4), (6, 7)]]),
        (Shard(0, sections=(4, 0)), 4, 2, [[(0, 2), (4, 4)], [(2, 4), (4, 4)]]),
        (Shard(0, unit=2, sections=(4, 2)), 6, 2, [[(0, 2), (4, 6)], [(2, 4), (6, 6)]]),
        (Shard(0, unit=(2, 1), sections=(4, 3)), 7, 2, [[(0, 2), (4, 6)], [(2, 4), (6, 7)]]),
        (Shard(0, unit=(4, 1), sections=(4, 3)), 7, 2, [[(0, 4), (4, 6)], [(4, 4), (6, 7)]]),
    ],
)
def test_ranges_and_sizes(shard, n, size, ranges):
    assert [shard.ranges(n, size, coord) for coord in range(size)] == ranges
    assert shard.sizes(n, size) == [sum(stop - start for start, stop in held) for held in ranges]
    assert [local_shape((n, 2), shard, size, coord) for coord in range(size)] == [(e, 2) for e in shard.sizes(n, size)]


@pytest.mark.parametrize(
    ("shard", "n"),
    [
        (Shard(0, unit=2), 7),
        (Shard(0, sections=(4, 3)), 8),
        (Shard(0, unit=2, sections=(5, 3)), 8),
        (Shard(0, unit=(3, 2), sections=(4, 6)), 10),
    ],
)
def test_units_and_sections_that_do_not_add_up(shard, n):
    with pytest.raises(
        ValueError, match=f" of {n} elements\n  expected sections that add up to {n}, each of whole units"
    ):
        shard.ranges(n, 2, 0)


def test_a_chunk_by_the_name_torch_gives_it():
    chunks = [Shard.local_shard_size_and_offset(7, 3, rank) for rank in range(3)]
    assert chunks == [(3, 0), (3, 3), (1, 6)]
    assert Shard.local_shard_size_and_offset(2, 3, 2) == (0, 2)


def test_counted_keeps_units_and_sections():
    assert Shard(-1, unit=2, sections=(4, 2)).counted(3) == Shard(2, unit=2, sections=(4, 2))


@pytest.mark.parametrize("placement", [Shard(1), Replicate(), Invariant(), Partial(), Partial("avg"), Share()])
def test_the_dual_of_the_dual(placement):
    assert dual(dual(placement)) == placement


def test_duals():
    assert [dual(p) for p in (Shard(2), Invariant(), Replicate(), Partial(), Partial("avg"))] == [
        Shard(2),
        Invariant(),
        Partial(),
        Replicate(),
        Share(),
    ]
    with pytest.raises(ValueError, match=r"Partial\('max'\) is not linear"):
        dual(Partial("max"))


def test_unknown_op():
    with pytest.raises(ValueError, match="'median'"):
        Partial("median")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint16, np.bool_])
@pytest.mark.parametrize(
    ("op", "combine"), [("sum", np.add), ("product", np.multiply), ("max", np.maximum), ("min", np.minimum)]
)
def test_neutral_elements_change_nothing(op, combine, dtype):
    x = np.array([0, 1] if dtype is np.bool_ else [0, 1, 5, 100]).astype(dtype)
    neutral = Partial(op).neutral(dtype)
    result = combine(x, np.full(x.shape, neutral))
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, x)


def test_an_empty_shard_is_neutral_in_a_maximum():
    parts = [np.array([-5.0, -7.0]), np.array([])]
    each = [np.max(part, initial=Partial("max").neutral(part.dtype)) for part in parts]
    assert max(each) == -5


def test_local_shape():
    assert [local_shape((5, 4), Shard(0), 3, coord) for coord in range(3)] == [(2, 4), (2, 4), (1, 4)]
    assert local_shape((5, 4), Shard(-1), 4, 3) == (5, 1)
    assert local_shape((5, 4), Partial(), 3, 2) == (5, 4)
    with pytest.raises(ValueError, match="Shard: dim"):
        local_shape((5, 4), Shard(-3), 2, 0)
