"""Convolution, its transpose, pooling and interpolation of any extents, against plain loops, with hypothesis."""

import numpy as np
import spatial_loops as loops
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpcdist.autograd import Tensor, grad
from hpcdist.nn import functional as F

SETTINGS = settings(deadline=None, max_examples=60)

pairs = lambda low, high: st.tuples(st.integers(low, high), st.integers(low, high))  # noqa: E731
dtypes = st.sampled_from([np.float64, np.float32])
seeds = st.integers(0, 9)
modes = st.sampled_from([("nearest", None), ("bilinear", False), ("bilinear", True)])


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def close(got, want):
    tol = 1e-10 if got.dtype == np.float64 else 1e-4
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def same(one, other, dtype):
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 if dtype == np.float32 else 1e-9)


@st.composite
def convolutions(draw_from):
    groups, each, out = draw_from(st.integers(1, 3)), draw_from(st.integers(1, 2)), draw_from(st.integers(1, 2))
    size, stride, padding, dilation = (draw_from(pairs(*ends)) for ends in ((1, 3), (1, 3), (0, 3), (1, 3)))
    plane = draw_from(pairs(1, 7))
    assume(all(n + 2 * p > d * (k - 1) for n, k, p, d in zip(plane, size, padding, dilation, strict=True)))
    shapes = (draw_from(st.integers(0, 2)), groups * each, *plane), (groups * out, each, *size)
    return shapes, stride, padding, dilation, groups


@SETTINGS
@given(convolutions(), dtypes, seeds)
def test_convolution_and_the_transpose_of_it(case, dtype, seed):
    (shape, kernel), stride, padding, dilation, groups = case
    x, w, bias = draw(seed, *shape), draw(seed + 1, *kernel), draw(seed + 2, kernel[0])
    tensors = [Tensor(a.astype(dtype), True) for a in (x, w, bias)]
    y = F.conv2d(*tensors, stride, padding, dilation, groups)
    want = loops.conv2d(x, w, bias, stride, padding, dilation, groups)
    close(y.data, want)
    g = draw(seed + 3, *want.shape)
    gx, gw, gbias = grad(y, tensors, g.astype(dtype))
    close(gbias, g.sum((0, 2, 3)))
    extra = tuple(
        (n + 2 * p - d * (k - 1) - 1) % s
        for n, k, s, p, d in zip(shape[2:], kernel[2:], stride, padding, dilation, strict=True)
    )
    back = loops.conv_transpose2d(g, w, None, stride, padding, extra, dilation, groups)
    close(gx, back)
    close(
        F.conv_transpose2d(
            *(Tensor(a.astype(dtype)) for a in (g, w)), None, stride, padding, extra, groups, dilation
        ).data,
        back,
    )
    # linear in the weight: <g, conv(x, v)> = <gw, v> for any v
    v = draw(seed + 4, *kernel)
    want = (g * loops.conv2d(x, v, None, stride, padding, dilation, groups)).sum()
    same((gw * v).sum(), want, dtype)


@SETTINGS
@given(pairs(1, 8), pairs(1, 4), pairs(1, 4), pairs(0, 2), pairs(1, 3), st.booleans(), dtypes, seeds)
def test_pooling(plane, size, stride, padding, dilation, ceil_mode, dtype, seed):
    assume(all(2 * p <= k for p, k in zip(padding, size, strict=True)))
    assume(all(n + 2 * p > d * (k - 1) for n, k, p, d in zip(plane, size, padding, dilation, strict=True)))
    x = draw(seed, 2, 3, *plane).astype(dtype)
    want = loops.pool2d(x, lambda seen, _: max(seen, default=-np.inf), size, stride, padding, dilation, ceil_mode)
    close(F.max_pool2d(Tensor(x), size, stride, padding, dilation, ceil_mode).data, want.astype(dtype))
    assume(all(n + 2 * p >= k for n, k, p in zip(plane, size, padding, strict=True)))
    for counted, reduce in ((True, loops.mean_with_padding), (False, loops.mean_of_seen)):
        want = loops.pool2d(x, reduce, size, stride, padding, (1, 1), ceil_mode)
        close(F.avg_pool2d(Tensor(x), size, stride, padding, ceil_mode, counted).data, want)


@SETTINGS
@given(
    pairs(1, 8),
    pairs(1, 12),
    st.sampled_from([("nearest", None), ("bilinear", False), ("bilinear", True)]),
    dtypes,
    seeds,
)
def test_resampling_and_its_transpose(plane, size, mode, dtype, seed):
    x, g = draw(seed, 2, 3, *plane), draw(seed + 1, 2, 3, *size)
    adaptive = (lambda x: F.adaptive_avg_pool2d(x, size)), loops.adaptive_avg_pool2d(x, size)
    other = (lambda x: F.interpolate(x, size, None, *mode)), loops.interpolate2d(x, size, *mode)
    for function, want in (adaptive, other):
        leaf = Tensor(x.astype(dtype), True)
        y = function(leaf)
        close(y.data, want)
        (gx,) = grad(y, leaf, g.astype(dtype))
        np.testing.assert_allclose(
            (gx * x).sum(), (g * want).sum(), rtol=1e-3, atol=1e-3 if dtype == np.float32 else 1e-9
        )
