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
    assert repr(Shard(1)) == "Shard(dim=1)"


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
