"""Arrays of any shape, dtype and arrangement of memory, and what an operation must do with them."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from hpcdist.autograd import OPS, Tensor, apply, check_vjp

SETTINGS = settings(deadline=None, max_examples=40)
TOLERANCE = {"f2": 2e-3, "f4": 2e-5, "f8": 1e-12, "c8": 2e-5, "c16": 1e-12}

extents = st.integers(0, 4)
shapes = st.lists(extents, min_size=0, max_size=3).map(tuple)
solid_shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
real_dtypes = st.sampled_from(["f4", "f8", "f2"])


def lay_out(values, layout):
    """Return equal values in another arrangement of memory."""
    if layout == "fortran":
        return values.copy(order="F")
    if layout == "gaps":
        wide = np.full([2 * n + 1 for n in values.shape], 77, values.dtype)
        wide[tuple(slice(1, 2 * n + 1, 2) for n in values.shape)] = values
        return wide[tuple(slice(1, 2 * n + 1, 2) for n in values.shape)]
    if layout == "backwards":
        return np.flip(np.flip(values).copy())
    return values


@st.composite
def arrays(draw, shape, dtype, low=-1.3):
    """Draw numbers, ``low`` + k / 8 and up to 1 / 32 more with a k for each, in some arrangement of memory.

    So none is near 0, or near another: differences see the slope.
    """
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    values = rng.permutation(np.prod(shape, dtype=int)).reshape(shape) / 8 + low + rng.random() / 32
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return lay_out(values.astype(dtype), draw(st.sampled_from(["plain", "fortran", "gaps", "backwards"])))


@st.composite
def one(draw, shape=shapes, dtype=real_dtypes, low=-1.3):
    return draw(arrays(draw(shape), draw(dtype), low))


@st.composite
def along(draw, shape=shapes):
    """Draw an array with one dimension at least, and one of its dimensions."""
    a = draw(one(shape.filter(len)))
    return a, draw(st.integers(-a.ndim, a.ndim - 1))


@st.composite
def reductions(draw, shape=shapes):
    """Draw an array, dimensions to reduce, and whether to keep them."""
    a = draw(one(shape))
    some = st.lists(st.integers(0, a.ndim - 1), unique=True).map(tuple) if a.ndim else st.just(())
    return a, draw(some | st.none()), draw(st.booleans())


def double(a):
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) if a.dtype.kind in "fc" else a


def agree(name, inputs, expected, *, dtype=None, **attrs):
    """Compare the values with ``expected``, and the gradient with differences."""
    results = apply(OPS[name], *map(Tensor, inputs), **attrs)
    results = results if isinstance(results, tuple) else (results,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for t, e in zip(results, expected, strict=True):
        e = np.asarray(e)
        if e.dtype.kind in "fc":
            assert t.dtype == (dtype or inputs[0].dtype)
            np.testing.assert_allclose(t.data, e, rtol=TOLERANCE[t.dtype.str[1:]], atol=TOLERANCE[t.dtype.str[1:]])
        else:
            np.testing.assert_array_equal(t.data, e)
        assert t.shape == e.shape
    check_vjp(OPS[name], *map(double, inputs), step=1e-5, tolerance=1e-6, **attrs)


class Rows(dict):
    """How to check one example of a row: functions of ``draw`` (of hypothesis) and the name, by name."""

    def add(self, *names):
        def register(function):
            self.update(dict.fromkeys(names, function))
            return function

        return register


def like(draw, a, *shape, low=-1.3):
    """Draw an array of the dtype of ``a``."""
    return draw(arrays(shape, a.dtype, low))


def rows_of(draw, least=0, dtype=real_dtypes):
    """Draw (..., n), with one dimension or two in front and n at least ``least``."""
    lead = draw(st.lists(st.integers(0, 3), min_size=1, max_size=2))
    return draw(arrays((*lead, draw(st.integers(least, 5))), draw(dtype)))
