"""Lanes: functions to a few units in the last place, and what is read and written at the end of a row."""

import math

import numba
import numpy as np
import pytest

from hpcdist.kernels.cpu import math as lane_math
from hpcdist.kernels.cpu import vector
from hpcdist.kernels.cpu.compiled import inline
from hpcdist.kernels.cpu.memory import at, load, load_or, store


def along(function):
    """Return ``function`` of lanes as a function of arrays."""

    @inline
    def kernel(x, y):
        for j in range(0, x.size, 16):
            store(at(y, 0), j, x.size - j, function(load(at(x, 0), j, x.size - j)))

    def call(x):
        y = np.full(x.shape, np.nan, np.float32)
        kernel(x, y)
        return y

    return call


EXP, ERF, SIGMOID = (along(f) for f in (lane_math.exp, lane_math.erf, lane_math.sigmoid))


def units(got, want):
    return np.abs(got.astype(float) - want) / np.spacing(np.abs(want).astype(np.float32)).astype(float)


@pytest.mark.parametrize(
    ("function", "oracle", "first", "last", "limit"),
    [
        (EXP, math.exp, -87.33, 88.72, 1.1),
        (EXP, math.exp, -1e-3, 1e-3, 1.1),
        (ERF, math.erf, -5, 5, 1.6),
        (ERF, math.erf, -1e-6, 1e-6, 1.1),
        (SIGMOID, lambda v: 1 / (1 + math.exp(-v)), -80, 80, 2.6),
    ],
)
def test_accuracy(function, oracle, first, last, limit):
    x = np.linspace(first, last, 30_001).astype(np.float32)
    want = np.array([oracle(float(v)) for v in x])
    assert units(function(x), want).max() < limit


def test_ends():
    x = np.array([np.nan, -np.nan, np.inf, -np.inf, 88.73, 1e30, -87.34, -1e30, 0.0, -0.0, 1e-40], np.float32)
    np.testing.assert_array_equal(EXP(x), [np.nan, np.nan, np.inf, 0, np.inf, np.inf, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(ERF(x[:8]), [np.nan, np.nan, 1, -1, 1, 1, -1, -1])
    np.testing.assert_array_equal(np.signbit(ERF(np.array([0.0, -0.0], np.float32))), [False, True])
    np.testing.assert_array_equal(SIGMOID(x[[0, 2, 3, 5, 7, 8, 9]]), [np.nan, 1, 0, 1, 0, 0.5, 0.5])


def test_nan_payload_stays_nan():
    x = (np.arange(0x7F800001, 0x7F800001 + 4096, dtype=np.uint32)).view(np.float32)
    assert np.isnan(EXP(x)).all()
    assert np.isnan(ERF(x)).all()


@inline
def _move(x, y, count, fill):
    store(at(y, 0), 1, count, load_or(at(x, 0), 2, count, fill) + np.float32(1))


@pytest.mark.parametrize("count", [-3, 0, 1, 5, 15, 16, 17])
def test_part_of_a_vector(count):
    x, y = np.arange(40, dtype=np.float32), np.full(40, -1, np.float32)
    _move(x, y, count, np.float32(9))
    moved = min(max(count, 0), 16)
    np.testing.assert_array_equal(y[1 : 1 + moved], x[2 : 2 + moved] + 1)
    assert (np.delete(y, np.s_[1 : 1 + moved]) == -1).all()


@inline
def _combine(x, out):
    a = load(at(x, 0), 0, 16)
    out[0] = vector.total(a)
    out[1] = vector.top(load_or(at(x, 0), 0, 11, np.float32(-np.inf)))
    out[2] = vector.total(vector.root(a * a) - vector.copysign(a, np.float32(1)))
    out[3] = vector.total(2 * vector.maximum(a, np.float32(0)) / np.float32(4) - vector.splat(0.5))


def test_arithmetic_and_reductions():
    x = np.random.default_rng(0).standard_normal(16).astype(np.float32)
    out = np.empty(4, np.float32)
    _combine(x, out)
    tree = x
    for half in (8, 4, 2, 1):
        tree = tree[:half] + tree[half:]
    assert out[0] == tree[0]
    assert out[1] == x[:11].max()
    assert out[2] == 0
    assert out[3] == pytest.approx((np.maximum(x, 0) / 2 - 0.5).sum(), rel=1e-5)


def test_lanes_do_not_mix_with_other_things():
    @inline
    def wrong(x):
        return load(at(x, 0), 0, 16) + "a"

    with pytest.raises(numba.TypingError):
        wrong(np.zeros(16, np.float32))
