"""Every kernel: compiled against generic form in float64; threads; NaN and inf; places of elements; other types."""

import numpy as np
import pytest
from unit.kernels import cases_spatial

from hpcdist.backends import cpu, flags
from hpcdist.kernels import activation, attention, bias, embedding, loss, noise, norm, optimizer, softmax
from hpcdist.kernels.registry import KERNELS, Kernel

SIZES = [(1, 1), (3, 3), (5, 17), (4, 257), (70, 64), (131, 96)]
HEADS, SEQ = 2, 70  # more than a block of queries


class Draw:
    """Random arguments, the same for the same size."""

    def __init__(self, m, n):
        self.m, self.n, self.random = m, n, np.random.default_rng(m * 1000 + n)

    def array(self, *shape):
        return self.random.standard_normal(shape or (self.m, self.n)).astype(np.float32)

    def positive(self, *shape):
        return np.abs(self.array(*shape)) + np.float32(0.1)

    def out(self, *shape):
        return np.full(shape or (self.m, self.n), np.nan, np.float32)

    def vector(self):
        return self.array(self.n)

    def targets(self, limit):
        chosen = self.random.integers(0, limit, self.m)
        chosen[:: max(2, self.m // 2)] = -100
        return chosen


def _norm_statistics(d):
    return d.array(d.m), d.positive(d.m)


def _attention_arguments(d, *rest):
    head = max(2, d.n // 8 * 2)
    tokens, width = 2 * SEQ, HEADS * head
    return d.array(tokens, 3 * width), width, tokens, head**-0.5


def _attention(d, causal):
    qkv, width, tokens, scale = _attention_arguments(d)
    return qkv, HEADS, SEQ, scale, causal, d.out(tokens, width), d.out(2 * HEADS, SEQ)


def _attention_grad(d, causal):
    args = _attention(d, causal)
    attention.attention.reference(*args)
    qkv, *_, out, lse = args
    return qkv, out, d.array(*out.shape), lse, HEADS, SEQ, args[3], causal, d.out(*qkv.shape)


def _rotary(d, sign):
    qkv, width, _, _ = _attention_arguments(d)
    angles = d.array(SEQ, width // HEADS // 2)
    return qkv, np.cos(angles), np.sin(angles), HEADS, sign, d.out(*qkv.shape)


def _adam(d, parts, l2=0.0):
    p, m, v = d.array(d.m * d.n), d.array(d.m * d.n), d.positive(d.m * d.n)
    return p, d.array(parts, p.size), m, v, 1e-2, 0.9, 0.95, 1e-8, 0.1, l2, 0.1, 0.05, 0.5


def _amsgrad(d):
    p, parts, m, v, *numbers = _adam(d, 2, 0.1)
    return p, parts, m, v, d.positive(p.size), *numbers


def _log_rows(d):
    y = d.out()
    softmax.log_softmax.reference(d.array(), y)
    return y


def _soft_rows(d):
    return np.exp(_log_rows(d))


def _words(d):
    return np.zeros((d.m * d.n, 4), np.uint32)


CASES = {
    "add_layer_norm": [
        lambda d: (d.array(), d.array(), d.vector(), d.vector(), 1e-5, d.out(), d.out(), d.out(d.m), d.out(d.m))
    ],
    "add_rms_norm": [lambda d: (d.array(), d.array(), d.vector(), 1e-5, d.out(), d.out(), d.out(d.m))],
    "layer_norm": [lambda d: (d.array(), d.vector(), d.vector(), 1e-5, d.out(), d.out(d.m), d.out(d.m))],
    "layer_norm_again": [lambda d: (d.array(), *_norm_statistics(d), d.vector(), d.vector(), d.out())],
    "layer_norm_grad": [
        lambda d: (d.array(), d.array(), *_norm_statistics(d), d.vector(), d.out(), False, d.out(d.n), d.out(d.n)),
        lambda d: (d.array(), d.array(), *_norm_statistics(d), d.vector(), d.array(), True, d.out(d.n), d.out(d.n)),
    ],
    "rms_norm": [lambda d: (d.array(), d.vector(), 1e-5, d.out(), d.out(d.m))],
    "rms_norm_again": [lambda d: (d.array(), d.positive(d.m), d.vector(), d.out())],
    "rms_norm_grad": [
        lambda d: (d.array(), d.array(), d.positive(d.m), d.vector(), d.out(), False, d.out(d.n)),
        lambda d: (d.array(), d.array(), d.positive(d.m), d.vector(), d.array(), True, d.out(d.n)),
    ],
    "gelu": [lambda d: (3 * d.array(), d.out(), True), lambda d: (3 * d.array(), d.out(), False)],
    "gelu_grad": [
        lambda d: (3 * d.array(), d.array(), d.out(), True),
        lambda d: (3 * d.array(), d.array(), d.out(), False),
    ],
    "silu": [lambda d: (3 * d.array(), d.out())],
    "silu_grad": [lambda d: (3 * d.array(), d.array(), d.out())],
    "swiglu": [lambda d: (d.array(d.m, 2 * d.n), d.out())],
    "swiglu_grad": [lambda d: (d.array(d.m, 2 * d.n), d.array(), d.out(d.m, 2 * d.n))],
    "col_sum": [lambda d: (d.array(), d.out(d.n), 0.0), lambda d: (d.array(), d.vector(), 0.5)],
    "softmax": [lambda d: (9 * d.array(), d.out())],
    "softmax_grad": [lambda d: (_soft_rows(d), d.array(), d.out())],
    "log_softmax": [lambda d: (9 * d.array(), d.out())],
    "log_softmax_grad": [lambda d: (_log_rows(d), d.array(), d.out())],
    "attention": [lambda d: _attention(d, True), lambda d: _attention(d, False)],
    "attention_grad": [lambda d: _attention_grad(d, True), lambda d: _attention_grad(d, False)],
    "rotary": [lambda d: _rotary(d, 1), lambda d: _rotary(d, -1)],
    "cross_entropy": [lambda d: (9 * d.array(), d.targets(d.n), -100)],
    "cross_entropy_grad": [lambda d: (9 * d.array(), d.targets(d.n), -100, 0.25)],
    "embedding_grad": [lambda d: (d.array(), d.random.integers(0, 7, d.m), d.array(7, d.n))],
    "adam": [lambda d: _adam(d, 1), lambda d: _adam(d, 3), lambda d: _adam(d, 1, 0.1)],
    "amsgrad": [_amsgrad],
    "sum_squares": [lambda d: (d.array(d.m * d.n),)],
    "block_squares": [lambda d: (d.array(d.m * d.n),)],
    "philox": [lambda d: (_words(d), 1, 2, 3, 4, 2**64 - 5)],
    "philox_at": [lambda d: (_words(d), 1, 2, 3, 4, d.random.integers(0, 2**64 - 1, d.m * d.n, np.uint64))],
}
CASES |= cases_spatial.CASES
EVERY = [pytest.param(name, make, id=f"{name}-{i}") for name, makes in CASES.items() for i, make in enumerate(makes)]
POINTWISE = ["gelu", "gelu_grad", "silu", "silu_grad", "adam", "amsgrad"]
ROWWISE = [
    "layer_norm",
    "add_layer_norm",
    "layer_norm_again",
    "rms_norm",
    "add_rms_norm",
    "rms_norm_again",
    "softmax",
    "softmax_grad",
    "log_softmax",
    "log_softmax_grad",
    "swiglu",
    "swiglu_grad",
]


def except_for(*prefixes):
    return [case for case in EVERY if not case.values[0].startswith(prefixes)]


def cast(args, dtype):
    return [a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype == np.float32 else a for a in args]


def copy(args):
    return [a.copy() if isinstance(a, np.ndarray) else a for a in args]


def arrays(args):
    return [a for a in args if isinstance(a, np.ndarray)]


def wanted(name, args):
    """Run the generic form in float64; return its result and all arrays after it."""
    args = cast(args, np.float64)
    return KERNELS[name].reference(*args), arrays(args)


def compiled(name, args, monkeypatch, num_threads=1):
    """Run the compiled form on copies; return its result and all arrays after it."""

    def refuse(*args):
        raise AssertionError("the generic form was called")

    kernel, args = Kernel(KERNELS[name].reference, KERNELS[name].module), copy(args)
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "num_threads", lambda: num_threads)
        kernel.reference = refuse
        return kernel(*args), arrays(args)


def assert_close(got, want, tol=3e-5):
    (value, after), (wanted_value, wanted_after) = got, want
    if wanted_value is not None:
        assert value == pytest.approx(wanted_value, rel=tol, abs=tol, nan_ok=True)
    for x, y in zip(after, wanted_after, strict=True):
        scale = np.abs(y[np.isfinite(y)]).max(initial=1) if y.dtype.kind == "f" else 1
        np.testing.assert_allclose(x, y, rtol=tol, atol=tol * scale)


def test_table_is_complete():
    assert set(CASES) == set(KERNELS)
    modules = activation, attention, bias, embedding, loss, noise, norm, optimizer, softmax, *cases_spatial.MODULES
    assert {k.module for k in KERNELS.values()} == {m.__name__.rpartition(".")[2] for m in modules}


@pytest.mark.parametrize(("name", "make"), EVERY)
def test_compiled_equals_generic(name, make, monkeypatch):
    for size in SIZES:
        args = make(Draw(*size))
        assert_close(compiled(name, args, monkeypatch), wanted(name, args))


@pytest.mark.parametrize(("name", "make"), EVERY)
def test_two_threads_equal_one(name, make, monkeypatch):
    for size in SIZES[1:-1:2]:
        args = make(Draw(*size))
        assert_close(compiled(name, args, monkeypatch, 2), compiled(name, args, monkeypatch, 1), 1e-6)


@pytest.mark.parametrize(("name", "make"), EVERY)
def test_switched_off(name, make):
    args = make(Draw(5, 17))
    want = wanted(name, args)
    with flags.kernels(off=(name,)):
        assert_close((KERNELS[name](*args), arrays(args)), want, 1e-4)


@pytest.mark.parametrize(("name", "make"), EVERY)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types_take_the_generic_form(name, make, dtype):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    tol = {"float64": 1e-12, "float16": 1e-2, "bfloat16": 6e-2}[np.dtype(dtype).name]
    args = cast(make(Draw(5, 17)), dtype)
    want = wanted(name, [a.astype(np.float32) if isinstance(a, np.ndarray) and a.dtype == dtype else a for a in args])
    value = KERNELS[name](*args)
    after = [a.astype(np.float64) if a.dtype == dtype else a for a in arrays(args)]
    assert_close((value, after), want, max(tol, 1e-6))


@pytest.mark.parametrize(("name", "make"), EVERY)
def test_strided_arrays_take_the_generic_form(name, make):
    args = make(Draw(5, 17))
    want = wanted(name, args)
    strided = [np.repeat(a, 2, axis=-1)[..., ::2] if isinstance(a, np.ndarray) else a for a in args]
    assert_close((KERNELS[name](*strided), arrays(strided)), want, 1e-4)


@pytest.mark.parametrize(("name", "make"), except_for("attention_grad", "philox"))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_come_through(name, make, bad, monkeypatch):
    for size in [(3, 3), (5, 40)]:
        args = make(Draw(*size))
        first = next(a for a in arrays(args) if a.dtype == np.float32)
        if name == "attention":  # what later tokens hold may reach earlier ones as 0 * NaN, or not
            first[0] = bad
        else:
            first.reshape(-1)[[1, -1]] = bad
        with np.errstate(all="ignore"):
            want = copy(args)
            value = KERNELS[name].reference(*want)
        assert_close(compiled(name, args, monkeypatch), (value, arrays(want)), 1e-4)


@pytest.mark.parametrize("name", POINTWISE)
def test_bits_do_not_depend_on_the_place_of_an_element(name, monkeypatch):
    for make in CASES[name]:
        args = make(Draw(1, 100))
        _, whole = compiled(name, args, monkeypatch)
        for start, stop in [(0, 16), (1, 100), (7, 30), (99, 100)]:
            part = [a[..., start:stop].copy() if isinstance(a, np.ndarray) else a for a in args]
            for x, y in zip(compiled(name, part, monkeypatch)[1], whole, strict=True):
                np.testing.assert_array_equal(x, y[..., start:stop])


@pytest.mark.parametrize("name", ROWWISE)
def test_bits_do_not_depend_on_the_place_of_a_row(name, monkeypatch):
    args = CASES[name][0](Draw(9, 45))
    _, whole = compiled(name, args, monkeypatch)
    part = [a[4:7].copy() if isinstance(a, np.ndarray) and len(a) == 9 else a for a in args]
    for x, y in zip(compiled(name, part, monkeypatch)[1], whole, strict=True):
        np.testing.assert_array_equal(x, y[4:7] if len(y) == 9 else y)


@pytest.mark.parametrize("name", ["philox", "philox_at"])
def test_random_bits_are_equal(name, monkeypatch):
    args = CASES[name][0](Draw(50, 7))
    want = copy(args)
    KERNELS[name].reference(*want)
    for num_threads in (1, 2):
        np.testing.assert_array_equal(compiled(name, args, monkeypatch, num_threads)[1][0], want[0])


@pytest.mark.parametrize("count", [0, 1, 16, 1000, 1024, 1025, 5000, 70_001])
def test_sum_of_squares_has_the_same_bits_everywhere(count, monkeypatch):
    x = Draw(1, 1).array(count)
    exact = optimizer.sum_squares.reference(x)
    assert exact == pytest.approx(float((x.astype(float) ** 2).sum()), rel=1e-14)
    for num_threads in (1, 2):
        assert compiled("sum_squares", [x], monkeypatch, num_threads)[0] == exact
    assert optimizer.sum_squares.reference(x.astype(float)) == exact


@pytest.mark.parametrize("count", [1, 1024, 1025, 5000])
def test_sums_of_squares_of_blocks_are_those_of_the_blocks_alone(count, monkeypatch):
    x = Draw(1, 1).array(count)
    found = optimizer.block_squares.reference(x)
    alone = [optimizer.block_squares.reference(x[i : i + optimizer.BLOCK])[0] for i in range(0, count, optimizer.BLOCK)]
    np.testing.assert_array_equal(found, alone)
    np.testing.assert_array_equal(compiled("block_squares", [x], monkeypatch)[0], alone)
    assert optimizer.tree_sum(found) == optimizer.sum_squares.reference(x)


@pytest.mark.parametrize(("name", "make"), except_for("attention", "rotary"))
def test_no_rows(name, make, monkeypatch):
    d = Draw(0, 5)
    d.targets = lambda limit: np.zeros(0, np.int64)
    with np.errstate(all="ignore"):
        args = make(d)
        want = copy(args)
        value = KERNELS[name].reference(*want)
    assert_close(compiled(name, args, monkeypatch), (value, arrays(want)))


ANY_LENGTH = {("embedding_grad", 2), ("col_sum", 0)} | cases_spatial.ANY_LENGTH  # these fit with any number of rows
WIDTH_COUNTS = {("rotary", 1), ("rotary", 2), ("adam", 1), ("amsgrad", 1)}


@pytest.mark.parametrize(("name", "make"), except_for("philox", "sum_squares", "block_squares"))
def test_shapes_that_do_not_fit_are_refused(name, make, monkeypatch):
    args = make(Draw(6, 17))
    for place in [i for i, a in enumerate(args) if isinstance(a, np.ndarray) and (name, i) not in ANY_LENGTH]:
        wrong, a = list(args), args[place]
        wrong[place] = a[:, 1:].copy() if (name, place) in WIDTH_COUNTS else np.concatenate([a, a[-1:]])
        with pytest.raises(ValueError, match=r"shapes of the arrays do not fit together\n.*\("):
            compiled(name, wrong, monkeypatch)
