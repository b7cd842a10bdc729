"""gemm against np.matmul in float64, for every layout of memory BLAS can take and some it cannot."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from hpcdist.backends import blas, flags
from hpcdist.kernels import gemm as gemm_module
from hpcdist.kernels.gemm import gemm

SHAPES = [(1, 1, 1), (3, 5, 7), (1, 17, 4), (17, 1, 4), (4, 9, 1), (64, 33, 128)]


def contiguous(x):
    return x.copy()


def transposed(x):
    return x.T.copy().T


def window(x):
    frame = np.full((x.shape[0] + 3, x.shape[1] + 5), np.nan, x.dtype)
    frame[1:-2, 2:-3] = x
    return frame[1:-2, 2:-3]


def transposed_window(x):
    return window(x.T).T


def every_other_row(x):
    frame = np.full((2 * x.shape[0], x.shape[1]), np.nan, x.dtype)
    frame[::2] = x
    return frame[::2]


def every_other_column(x):
    return every_other_row(x.T).T


def strided_both_ways(x):
    frame = np.full((2 * x.shape[0], 2 * x.shape[1]), np.nan, x.dtype)
    frame[::2, ::2] = x
    return frame[::2, ::2]


def backwards(x):
    return x[::-1].copy()[::-1]


LAYOUTS = [
    contiguous,
    transposed,
    window,
    transposed_window,
    every_other_row,
    every_other_column,
    strided_both_ways,
    backwards,
]


def draw(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def check(a, b, out, alpha=1.0, beta=0.0, trans_a=False, trans_b=False, tol=2e-5):
    wide_a, wide_b = (x.astype(float).T if t else x.astype(float) for x, t in ((a, trans_a), (b, trans_b)))
    want = alpha * wide_a @ wide_b + (beta * out.astype(float) if beta else 0)
    gemm(a, b, out, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b)
    np.testing.assert_allclose(out.astype(float), want, rtol=tol, atol=tol * max(1, a.size // max(1, len(a))))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layouts(layout, place, dtype):
    for (m, k, n), trans_a, trans_b in itertools.product(SHAPES, [False, True], [False, True]):
        a, b = draw(*((k, m) if trans_a else (m, k)), dtype=dtype), draw(*((n, k) if trans_b else (k, n)), dtype=dtype)
        arrays = [a, b, draw(m, n, dtype=dtype)]
        arrays[place] = layout(arrays[place])
        check(*arrays, alpha=0.5, beta=2.0, trans_a=trans_a, trans_b=trans_b)


@pytest.mark.parametrize("layout", [contiguous, transposed, window, transposed_window])
def test_views_reach_blas_without_a_copy(layout, monkeypatch):
    def refuse(*args):
        raise AssertionError("copied")

    monkeypatch.setattr(gemm_module, "_generic", refuse)
    check(layout(draw(6, 5)), layout(draw(5, 9)), layout(draw(6, 9)))


def test_surroundings_of_a_window_stay():
    frame = np.full((8, 9), 7, np.float32)
    gemm(draw(3, 4), draw(4, 5), frame[2:5, 1:6])
    assert (frame == 7).sum() == frame.size - 15


@pytest.mark.parametrize("off", [(), ("gemm",)])
@pytest.mark.parametrize("k", [0, 4])
def test_beta_zero_overwrites_nan(off, k):
    out = np.full((3, 5), np.nan, np.float32)
    with flags.kernels(off=off):
        check(draw(3, k), draw(k, 5), out)
    assert not np.isnan(out).any()


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty_extents(shape):
    m, k, n = shape
    check(draw(m, k), draw(k, n), np.ones((m, n), np.float32), beta=3.0)


def test_switched_off_gives_the_same():
    a, b, out = draw(20, 30), draw(30, 10), draw(20, 10)
    with flags.kernels(off=("gemm",)):
        check(a, b, out, alpha=2.0, beta=1.0)


@pytest.mark.parametrize(("name", "tol"), [("float16", 2e-3), ("bfloat16", 2e-2), ("complex128", 1e-12), ("int64", 0)])
def test_other_types(name, tol):
    dtype = np.dtype(name) if name != "bfloat16" else pytest.importorskip("ml_dtypes").bfloat16
    a, b = (10 * draw(4, 64)).astype(dtype), (10 * draw(64, 3)).astype(dtype)
    out = np.ones((4, 3), dtype)
    want = np.matmul(a.astype(complex), b.astype(complex)) + 1
    gemm(a, b, out, beta=1.0)
    np.testing.assert_allclose(out.astype(complex), want, rtol=tol, atol=tol * 100)


def test_mixed_types():
    check(draw(4, 6), draw(6, 3, dtype=np.float64), np.ones((4, 3)), beta=1.0)
    check(draw(4, 6), draw(6, 3), np.ones((4, 3)))


def test_other_byte_order():
    check(draw(4, 6).astype(">f4"), draw(6, 3), draw(4, 3))


@pytest.mark.parametrize("shapes", [((3, 4), (5, 6), (3, 6)), ((3, 4), (4, 6), (3, 5)), ((3, 4), (4, 6), (2, 6))])
def test_shapes_that_do_not_fit(shapes):
    with pytest.raises(ValueError, match="gemm: the shapes do not fit"):
        gemm(*(draw(*shape) for shape in shapes))


def test_32_bit_integers_keep_large_extents_away_from_blas(monkeypatch):
    tiny = SimpleNamespace(**blas.interface()._asdict(), int_limit=8)
    tiny.int_bits = 32
    calls = []
    tiny.sgemm = lambda *args: calls.append(args)
    monkeypatch.setattr(gemm_module, "_BLAS", tiny)
    check(draw(3, 9), draw(9, 3), draw(3, 3))
    assert not calls
    gemm(draw(3, 8), draw(8, 3), draw(3, 3))
    assert len(calls) == 1


def test_without_blas(monkeypatch):
    monkeypatch.setattr(gemm_module, "_BLAS", None)
    check(draw(3, 9), draw(9, 3), draw(3, 3), beta=1.0)


def test_addresses_agree():
    frame = draw(8, 8)
    for x in (frame, frame[2:, 3:], frame.T, frame[::-1]):
        assert gemm_module._address(x) == x.ctypes.data
