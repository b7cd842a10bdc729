"""Where results lie: large ones in memory of the pool, so that a steady step asks the system for none."""

import tracemalloc

import numpy as np
import pytest

from hpcdist.autograd import OPS, Tensor, apply, backward
from hpcdist.autograd.mask import choose, keep
from hpcdist.autograd.pool import pooled

SIDE = 256
BYTES = 4 * SIDE * SIDE


def positive(seed):
    return Tensor(np.random.default_rng(seed).random((SIDE, SIDE), np.float32) + np.float32(0.5), True)


A, B = positive(0), positive(1)
MASK = Tensor(A.data > 1)
TWO = Tensor(np.array(2, np.float32))
ROW = Tensor(B.data[0].copy(), True)
ONE_ARGUMENT = ("exp", "log", "sin", "cos", "sqrt", "tanh", "sigmoid", "relu", "abs", "neg")
TWO_ARGUMENTS = ("add", "sub", "mul", "div", "maximum", "minimum", "matmul")
DIM = {"dim": 0, "keepdim": False}
CASES = [
    *[(name, (A,), {}) for name in ONE_ARGUMENT],
    *[(name, (A, B), {}) for name in TWO_ARGUMENTS],
    ("mul", (A, TWO), {}),
    ("add", (A, ROW), {}),
    ("mul", (ROW, A), {}),
    ("pow", (A,), {"exponent": 2}),
    ("pow", (A,), {"exponent": 2.5}),
    ("where", (MASK, A, B), {}),
    ("clamp", (A,), {"min": 0.7, "max": 1.1}),
    ("huber", (A, B), {"delta": 0.1}),
    ("cumsum", (A,), {"dim": 1}),
    ("cat", (A, B), {"dim": 1}),
    ("stack", (A, B), {"dim": 0}),
    ("sum", (A,), DIM),
    ("mean", (A,), DIM),
    ("var", (A,), {**DIM, "correction": 1}),
]


@pytest.mark.parametrize(("name", "inputs", "attrs"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_a_steady_step_takes_nothing_large_from_the_system(name, inputs, attrs):
    seed = np.ones(apply(OPS[name], *inputs, **attrs).shape, np.float32)

    def step():
        for leaf in inputs:
            leaf.grad = None
        result = apply(OPS[name], *inputs, **attrs)
        backward(result, seed)

    for _ in range(3):
        step()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        step()
        fresh = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    # backward copies what it starts from
    assert fresh < seed.nbytes + BYTES / 4


@pytest.mark.parametrize("dtypes", [("f4", "f4"), ("f8", "f4"), ("f4", "i8"), ("c8", "f8"), ("f2", "f2"), ("i4", "u1")])
@pytest.mark.parametrize("function", [np.add, np.multiply, np.divide, np.less, np.hypot, np.equal])
def test_pooled_results_are_those_of_the_function(dtypes, function):
    if "c" in dtypes[0] and function is np.hypot:
        function = np.subtract
    rng = np.random.default_rng(0)
    a, b = ((rng.random(shape) * 9 + 1).astype(d) for shape, d in zip([(200, 1, 300), (4, 300)], dtypes, strict=True))
    for x, y in ((a, b), (b, a), (a, 2), (3.5, a), (a.T, a.T)):
        found, expected = pooled(function, x, y), function(x, y)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16", "i8", "u1"])
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((2, 3), ()), ((0, 3), (3,))])
def test_chosen_elements(dtype, shapes):
    rng = np.random.default_rng(0)
    a = np.asarray(rng.random(shapes[0]) * 100).astype(dtype)
    mask = np.asarray(rng.random(shapes[1]) < 0.5)
    np.testing.assert_array_equal(keep(a, mask), np.where(mask, a, 0))
    np.testing.assert_array_equal(
        choose(mask, a, a[..., ::-1] if a.ndim else a), np.where(mask, a, a[..., ::-1] if a.ndim else a)
    )
    assert keep(a, mask).dtype == choose(mask, a, a).dtype == a.dtype


def test_what_is_not_kept_may_be_infinite():
    x = Tensor(np.array([-1, 2, -3], np.float32), True)
    backward(apply(OPS["relu"], x), np.array([np.inf, 5, np.nan]))
    np.testing.assert_array_equal(x.grad, [0, 5, 0])
