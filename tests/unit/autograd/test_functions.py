"""Functions and methods: values against NumPy and closed forms, and where gradients go when elements are equal."""

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hpcdist as hd
from hpcdist.autograd import Tensor, arrangement, backward, functions

RNG = np.random.default_rng(0)


def leaf(values, dtype=np.float64):
    return Tensor(np.asarray(values, dtype), requires_grad=True)


def gradient(fn, values, seed=None):
    """Return the gradient of ``sum(fn(x) * seed)``."""
    x = leaf(values, np.result_type(np.asarray(values), np.float64))
    y = fn(x)
    backward(y, np.ones(y.shape) if seed is None else seed)
    return x.grad


# ---------------------------------------------------------------- values
X = RNG.standard_normal((3, 4, 5))
VALUES = [
    (lambda x: hd.abs(x), np.abs),
    (lambda x: abs(x), np.abs),
    (lambda x: hd.exp(x), np.exp),
    (lambda x: hd.log(hd.abs(x)), lambda x: np.log(np.abs(x))),
    (lambda x: hd.sqrt(x.abs()), lambda x: np.sqrt(np.abs(x))),
    (lambda x: hd.sin(x), np.sin),
    (lambda x: hd.cos(x), np.cos),
    (lambda x: hd.tanh(x), np.tanh),
    (lambda x: hd.sigmoid(x), lambda x: 1 / (1 + np.exp(-x))),
    (lambda x: hd.erf(x), np.vectorize(math.erf)),
    (lambda x: hd.eq(x, X[0]), lambda x: x == X[0]),
    (lambda x: hd.ne(x, X[0]), lambda x: x != X[0]),
    (lambda x: hd.lt(x, 0), lambda x: x < 0),
    (lambda x: hd.le(x, X[0]), lambda x: x <= X[0]),
    (lambda x: hd.gt(x, X[0]), lambda x: x > X[0]),
    (lambda x: hd.ge(x, X[0]), lambda x: x >= X[0]),
    (lambda x: x < 0.5, lambda x: x < 0.5),
    (lambda x: x <= 0.5, lambda x: x <= 0.5),
    (lambda x: X[0] > x, lambda x: X[0] > x),
    (lambda x: x >= x[0], lambda x: x >= x[0]),
    (lambda x: x[x > 0], lambda x: x[x > 0]),
    (lambda x: x[Tensor(np.array([2, 0])), :, 1], lambda x: x[[2, 0], :, 1]),
    (lambda x: hd.maximum(x, 0.5), lambda x: np.maximum(x, 0.5)),
    (lambda x: hd.minimum(X[0], x), lambda x: np.minimum(X[0], x)),
    (lambda x: hd.clamp(x, max=0.3), lambda x: np.clip(x, None, 0.3)),
    (lambda x: x.clamp(-0.3, 0.3), lambda x: np.clip(x, -0.3, 0.3)),
    (lambda x: hd.where(X > 0, x, -1.0), lambda x: np.where(X > 0, x, -1)),
    (lambda x: hd.masked_fill(x, X > 0, 7), lambda x: np.where(X > 0, 7, x)),
    (lambda x: hd.sum(x, (0, 1)), lambda x: x.sum((0, 1))),
    (lambda x: hd.mean(x, 1, keepdim=True), lambda x: x.mean(1, keepdims=True)),
    (lambda x: hd.cumsum(x, 1), lambda x: x.cumsum(1)),
    (lambda x: hd.var(x), lambda x: x.var(ddof=1)),
    (lambda x: x.var((0, 2), correction=0), lambda x: x.var((0, 2))),
    (lambda x: hd.std(x, 1, keepdim=True), lambda x: x.std(1, ddof=1, keepdims=True)),
    (lambda x: hd.norm(x), lambda x: np.linalg.norm(x.ravel())),
    (lambda x: x.norm(3, (0, 1)), lambda x: (np.abs(x) ** 3).sum((0, 1)) ** (1 / 3)),
    (lambda x: hd.norm(x, math.inf, 0), lambda x: np.abs(x).max(0)),
    (lambda x: hd.max(x), np.max),
    (lambda x: hd.min(x), np.min),
    (lambda x: x.max(1)[0], lambda x: x.max(1)),
    (lambda x: x.max(1)[1], lambda x: x.argmax(1)),
    (lambda x: x.min(-1, True)[1], lambda x: x.argmin(-1, keepdims=True)),
    (lambda x: hd.amax(x, (0, 2)), lambda x: x.max((0, 2))),
    (lambda x: hd.amin(x, (0, 2), True), lambda x: x.min((0, 2), keepdims=True)),
    (lambda x: hd.argmax(x), np.argmax),
    (lambda x: hd.argmin(x, 0), lambda x: x.argmin(0)),
    (lambda x: hd.sort(x, 1)[0], lambda x: np.sort(x, 1)),
    (lambda x: hd.argsort(x, 0, descending=True), lambda x: np.argsort(-x, 0)),
    (lambda x: hd.topk(x, 2)[0], lambda x: -np.sort(-x, -1)[..., :2]),
    (lambda x: x.topk(2, 0, largest=False)[1], lambda x: np.argsort(x, 0)[:2]),
    (lambda x: hd.matmul(x, X[0].T), lambda x: x @ X[0].T),
    (lambda x: hd.bmm(x, Tensor(X.swapaxes(1, 2))), lambda x: x @ X.swapaxes(1, 2)),
    (lambda x: hd.outer(x[0, 0], x[0, :, 0]), lambda x: np.outer(x[0, 0], x[0, :, 0])),
    (lambda x: hd.einsum("...j,kj", x, X[0]), lambda x: np.einsum("...j,kj", x, X[0])),
    (lambda x: hd.einsum("bij,bkj->bik", x, x), lambda x: x @ x.swapaxes(1, 2)),
    (lambda x: hd.reshape(x, (4, -1)), lambda x: x.reshape(4, -1)),
    (lambda x: x.view(12, 5), lambda x: x.reshape(12, 5)),
    (lambda x: hd.flatten(x, 1), lambda x: x.reshape(3, 20)),
    (lambda x: x.flatten(), np.ravel),
    (lambda x: x[0, 0, 0].flatten(), lambda x: x[:1, 0, 0]),
    (lambda x: hd.squeeze(x[:1, :, :1]), lambda x: x[0, :, 0]),
    (lambda x: x[:1, :, :1].squeeze(0), lambda x: x[0, :, :1]),
    (lambda x: x.squeeze((0, 1)), lambda x: x),
    (lambda x: hd.unsqueeze(x, -1), lambda x: x[..., None]),
    (lambda x: x.unsqueeze(0), lambda x: x[None]),
    (lambda x: hd.permute(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    (lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    (lambda x: hd.broadcast_to(x[:1], (2, 4, 5)), lambda x: np.broadcast_to(x[:1], (2, 4, 5))),
    (lambda x: x[:, :1].expand(2, -1, 6, -1), lambda x: np.broadcast_to(x[:, :1], (2, 3, 6, 5))),
    (lambda x: hd.cat([x, x], 1), lambda x: np.concatenate([x, x], 1)),
    (lambda x: hd.stack([x, x], -1), lambda x: np.stack([x, x], -1)),
    (lambda x: hd.split(x, 3, 1)[1], lambda x: x[:, 3:]),
    (lambda x: hd.pad(x, (1, 2)), lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2)))),
    (lambda x: hd.pad(x, (1, 2, 3, 0), "reflect"), lambda x: np.pad(x, ((0, 0), (3, 0), (1, 2)), "reflect")),
    (lambda x: hd.pad(x, (6, 2), "replicate"), lambda x: np.pad(x, ((0, 0), (0, 0), (6, 2)), "edge")),
    (lambda x: hd.pad(x, (5, 2, 1, 4), "circular"), lambda x: np.pad(x, ((0, 0), (1, 4), (5, 2)), "wrap")),
    (
        lambda x: hd.pad(x, (-1, 2), value=3.5),
        lambda x: np.pad(x[..., 1:], ((0, 0), (0, 0), (0, 2)), constant_values=3.5),
    ),
    (lambda x: hd.index_select(x, 1, [2, 2, 0]), lambda x: x[:, [2, 2, 0]]),
    (lambda x: hd.take_along_dim(x, [2, 17]), lambda x: x.ravel()[[2, 17]]),
    (lambda x: hd.take_along_dim(x, X.argsort(1), 1), lambda x: np.sort(x, 1)),
    (lambda x: hd.real(x), lambda x: x),
    (lambda x: hd.complex(x, 2 * x), lambda x: x + 2j * x),
    (lambda x: hd.imag(hd.complex(x, 2 * x)), lambda x: 2 * x),
    (lambda x: hd.real(hd.complex(x, 2 * x)), lambda x: x),
    (lambda x: hd.conj(hd.complex(x, x)), lambda x: x - 1j * x),
    (lambda x: hd.view_as_real(hd.complex(x, 2 * x)), lambda x: np.stack([x, 2 * x], -1)),
    (lambda x: hd.view_as_complex(hd.stack([x, 2 * x], -1)), lambda x: x + 2j * x),
    (lambda x: hd.complex(3 * x, 4 * x).abs(), lambda x: 5 * np.abs(x)),
]


@pytest.mark.parametrize(("ours", "plain"), VALUES, ids=range(len(VALUES)))
def test_values_equal_numpy(ours, plain):
    found = ours(Tensor(X)).numpy()
    np.testing.assert_allclose(found, plain(X), rtol=1e-13, atol=1e-14)


def test_gather_and_scatter_add_are_loops():
    x, src = RNG.standard_normal((4, 5)), RNG.standard_normal((4, 6))
    index = RNG.integers(0, 5, (3, 6))
    found = hd.gather(Tensor(x), 1, index).numpy()
    added = hd.scatter_add(Tensor(x), 1, index, Tensor(src)).numpy()
    expected = x.copy()
    for i in range(3):
        for j in range(6):
            assert found[i, j] == x[i, index[i, j]]
            expected[i, index[i, j]] += src[i, j]
    np.testing.assert_allclose(added, expected, rtol=1e-14)


def test_where_of_numbers_is_a_float32_tensor():
    y = hd.where(np.array([True, False]), 1.5, -2.0)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y.numpy(), [1.5, -2])


# ---------------------------------------------------------------- equal elements, NaN, ends
def test_the_first_of_equal_elements_gets_the_gradient():
    x = [[1.0, 3, 3], [3, 0, 3]]
    np.testing.assert_array_equal(gradient(lambda t: t.max(), x), [[0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(gradient(lambda t: t.max(1)[0], x), [[0, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(gradient(lambda t: hd.amax(t, (1, 0)), x), [[0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(gradient(lambda t: t.min(0)[0], [[1.0, 2], [1, 2]]), [[1, 1], [0, 0]])


def test_equal_operands_of_maximum_share_the_gradient():
    a, b = leaf([1.0, 2, 3]), leaf([1.0, 5, 0])
    backward(hd.maximum(a, b), np.ones(3))
    np.testing.assert_array_equal(a.grad, [0.5, 0, 1])
    np.testing.assert_array_equal(b.grad, [0.5, 1, 0])


def test_elements_at_an_end_of_clamp_keep_their_gradient():
    np.testing.assert_array_equal(gradient(lambda t: t.clamp(0, 1), [-1.0, 0, 0.5, 1, 2]), [0, 1, 1, 1, 0])
    with pytest.raises(ValueError, match="clamp: expected min, max or both"):
        leaf([1.0]).clamp()


def test_equal_elements_keep_their_order():
    x = Tensor(np.array([2.0, 1, 2, 1, 2]))
    np.testing.assert_array_equal(hd.argsort(x).numpy(), [1, 3, 0, 2, 4])
    np.testing.assert_array_equal(hd.argsort(x, descending=True).numpy(), [0, 2, 4, 1, 3])
    np.testing.assert_array_equal(hd.topk(x, 2)[1].numpy(), [0, 2])


def test_nan_is_the_largest():
    x = Tensor(np.array([1.0, np.nan, 2, np.nan]))
    np.testing.assert_array_equal(hd.argsort(x).numpy(), [0, 2, 1, 3])
    np.testing.assert_array_equal(hd.topk(x, 3)[1].numpy(), [1, 3, 2])
    value, where = hd.max(x, 0)
    assert math.isnan(value.item())
    assert where.item() == 1


def test_elements_picked_twice_get_both_gradients():
    seed = np.array([[1.0, 10, 100]])
    taken = gradient(lambda t: hd.take_along_dim(t, np.array([[1, 1, 0]]), 1), [[0.0, 0]], seed)
    np.testing.assert_array_equal(taken, [[100, 11]])
    np.testing.assert_array_equal(gradient(lambda t: hd.index_select(t, 1, [1, 1, 0]), [[0.0, 0]], seed), [[100, 11]])


def test_gradients_where_a_root_has_no_slope_are_zero():
    same = np.full((2, 3), 1.5)
    np.testing.assert_array_equal(gradient(lambda t: t.std(1), same), 0)
    for p in (1, 2, 3, 0.5, math.inf):
        np.testing.assert_array_equal(gradient(lambda t, p=p: t.norm(p), np.zeros(3)), 0)
    np.testing.assert_array_equal(gradient(lambda t: t.abs(), [0.0, -2]), [0, -1])


def test_the_largest_magnitudes_share_the_gradient_of_the_maximum_norm():
    np.testing.assert_array_equal(gradient(lambda t: t.norm(math.inf), [3.0, -3, 1]), [0.5, -0.5, 0])


@pytest.mark.parametrize(
    "op",
    [
        lambda a, b: a * b,
        lambda a, b: hd.einsum("i,i->i", a, b),
        lambda a, b: (a.view(2, 1, 1) @ b.view(2, 1, 1)).view(2),
    ],
)
def test_real_operands_of_complex_products_get_real_gradients(op):
    a, b = leaf([1.0, 2]), leaf([1 + 2j, 3 - 1j], np.complex128)
    seed = np.array([1 - 1j, 2j])
    backward(op(a, b), seed)
    np.testing.assert_allclose(a.grad, (seed * b.data.conj()).real)
    np.testing.assert_allclose(b.grad, seed * a.data)


def test_the_gradient_of_a_squared_magnitude_is_twice_the_number():
    z = leaf([3 - 4j, 1j], np.complex128)
    backward((z.abs() ** 2).sum())
    np.testing.assert_allclose(z.grad, 2 * z.data)


# ---------------------------------------------------------------- 16-bit floats
ROWS = [3, 0, 3]
SHORT = {
    "abs": hd.abs,
    "sin": hd.sin,
    "maximum": lambda x: hd.maximum(x, 0.25),
    "clamp": lambda x: x.clamp(-0.25, 0.75),
    "max": lambda x: hd.max(x, 1)[0],
    "sort": lambda x: hd.sort(x, 0)[0],
    "topk": lambda x: hd.topk(x, 3)[0],
    "cumsum": lambda x: hd.cumsum(x, 0),
    "var": lambda x: hd.var(x, 1),
    "std": lambda x: hd.std(x),
    "norm": lambda x: hd.norm(x, 2, 0),
    "einsum": lambda x: hd.einsum("ij,kj->ik", x, x),
    "pad": lambda x: hd.pad(x, (1, 2), "reflect"),
    "stack": lambda x: hd.stack([x, x]),
    "expand": lambda x: x.unsqueeze(0).expand(3, -1, -1),
    "index_select": lambda x: hd.index_select(x, 0, ROWS),
    "take_along_dim": lambda x: hd.take_along_dim(x, np.array([[1, 1, 0]]), 1),
    "scatter_add": lambda x: hd.scatter_add(x, 0, np.zeros((4, 6), int), x),
    "where": lambda x: x.masked_fill(x.data > 0, 2),
}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("fn", SHORT.values(), ids=SHORT)
def test_16_bit_floats_stay_and_lose_their_own_digits_only(fn, dtype):
    short = Tensor(np.random.default_rng(1).standard_normal((4, 6)).astype(dtype), requires_grad=True)
    exact = leaf(short.data.astype(np.float64))
    y, expected = fn(short), fn(exact)
    assert y.dtype == dtype
    seed = np.random.default_rng(2).integers(-2, 3, y.shape)
    backward(y, seed)
    backward(expected, seed)
    for found, true in ((y.data, expected.data), (short.grad, exact.grad)):
        assert found.dtype == dtype
        np.testing.assert_allclose(found.astype(float), true, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("fn", [lambda x: hd.index_select(x, 0, np.zeros(4096, int)), lambda x: x.expand(4096)])
def test_gradients_of_16_bit_floats_do_not_stop_growing(fn):
    x = Tensor(np.ones(1, np.float16), requires_grad=True)
    backward(fn(x), np.ones(4096))
    assert x.grad[0] == 4096


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: hd.pad(x, (1, 2, 3)), r"pad: widths.*\(1, 2, 3\)"),
        (lambda x: hd.pad(x, (1,) * 8), "last of 3 dimensions"),
        (lambda x: hd.bmm(x, x[0]), r"bmm: .*\(3, 4, 5\), \(4, 5\)"),
        (lambda x: hd.gather(x, 0, np.zeros((1, 5, 5), int)), r"gather: .*\(1, 5, 5\) for \(3, 4, 5\)"),
        (lambda x: hd.scatter_add(x, 0, np.zeros((4, 4, 5), int), x), r"scatter_add: .*\(4, 4, 5\) for \(3, 4, 5\)"),
        (lambda x: x.unsqueeze(4), "dim 4 is out of range"),
        (lambda x: x.squeeze(3), "dim 3 is out of range"),
        (lambda x: x.expand(4, -1), r"expand.*\(4, -1\)"),
        (lambda x: x.expand(-1, 3, 4, 5), "expand.*new ones, in front, not -1"),
        (lambda x: x.flatten(2, 1), "flatten.*2 to 1"),
    ],
)
def test_errors_name_the_function(fn, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        fn(Tensor(X))


def test_every_function_is_here():
    text = Path(__file__).read_text()
    assert [n for n in [*functions.__all__, *arrangement.__all__] if f"hd.{n}(" not in text] == []
