"""Operations on 16-bit, integer and complex values, on no elements, and at the ends of the range."""

import math

import ml_dtypes
import numpy as np
import pytest

from hpcdist.autograd import OPS, Tensor, apply, backward, check_vjp


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sums_of_16_bit_floats_do_not_stop_growing(dtype):
    x = Tensor(np.ones((4096, 2), dtype))
    for value, expected in ((x.sum(0), 4096), (x.mean(), 1), (x.mean(0), 1)):
        assert value.dtype == dtype
        np.testing.assert_array_equal(value.data.astype(float), expected)
    bias = Tensor(np.zeros(2, dtype), True)
    backward(x + bias, np.ones((4096, 2)))
    np.testing.assert_array_equal(bias.grad.astype(float), 4096)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats_stay_16_bit_floats(dtype):
    x = normal(5, 5).astype(dtype) * 3
    product = apply(OPS["matmul"], Tensor(x), Tensor(x))
    assert product.dtype == dtype
    np.testing.assert_array_equal(product.data, (x.astype(np.float32) @ x.astype(np.float32)).astype(dtype))
    values = apply(OPS["erf"], Tensor(x))
    assert values.dtype == dtype
    np.testing.assert_allclose(values.data.astype(float), np.vectorize(math.erf)(x.astype(float)), atol=4e-3)


def test_sums_of_small_integers_do_not_wrap_around():
    assert Tensor(np.full(10, 200, np.uint8)).sum().item() == 2000
    assert Tensor(np.ones(10, bool)).sum().item() == 10


@pytest.mark.parametrize("name", ["linear", "matmul", "mul", "div", "mean"])
def test_gradients_of_complex_values(name):
    x, y = (normal(3, 3, seed=s) + 1j * normal(3, 3, seed=s + 2) for s in (0, 1))
    attrs = {"dim": 0, "keepdim": False} if name == "mean" else {}
    check_vjp(OPS[name], *([x] if name == "mean" else [x, y]), **attrs)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "swiglu", "gelu", "silu"])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_of_no_elements(name, shape, dtype):
    attrs = {"gelu": {"tanh": False}, "softmax": {"dim": 0}, "log_softmax": {"dim": -1}}.get(name, {})
    x = Tensor(np.empty(shape, dtype), True)
    y = apply(OPS[name], x, **attrs)
    assert y.shape == ((*shape[:-1], shape[-1] // 2) if name == "swiglu" else shape)
    y.sum().backward()
    assert x.grad.shape == shape


def test_where_keeps_infinite_gradients_to_the_side_that_was_taken():
    a, b = Tensor(np.zeros(3), True), Tensor(np.zeros(3), True)
    y = apply(OPS["where"], Tensor(np.array([2, 0, 1])), a, b)  # integers count as their truth
    backward(y, np.array([np.inf, np.nan, 1.0]))
    np.testing.assert_array_equal(a.grad, [np.inf, 0, 1])
    np.testing.assert_array_equal(b.grad, [0, np.nan, 0])


def test_powers_and_quotients_at_the_ends_of_the_range():
    x = Tensor(np.array([0.0, 2.0, np.inf]), True)
    (x**0).sum().backward()
    np.testing.assert_array_equal(x.grad, 0)
    a, b = (Tensor(np.array([1e-30, 1e30], np.float32), True) for _ in range(2))
    (a / b).sum().backward()  # b * b is out of range
    np.testing.assert_allclose(b.grad, [-1e30, -1e-30], rtol=1e-6)


@pytest.mark.parametrize("name", ["relu", "maximum", "minimum"])
def test_nan_is_not_hidden_by_a_choice(name):
    leaves = [Tensor(np.array([np.nan, 1.0, 2.0]), True) for _ in range(1 if name == "relu" else 2)]
    backward(apply(OPS[name], *leaves), np.array([np.nan, 1, 1]))
    for leaf in leaves:
        np.testing.assert_array_equal(leaf.grad, np.array([np.nan, 1, 1]) * [1, 1 / len(leaves), 1 / len(leaves)])


@pytest.mark.parametrize(
    "name", ["relu", "sigmoid", "erf", "maximum", "minimum", "clamp", "max", "min", "sort", "topk"]
)
def test_complex_values_have_no_order(name):
    z = Tensor(np.ones(3, np.complex64))
    attrs = {"clamp": {"min": 0, "max": 1}, "sort": {"dim": 0, "descending": False}}
    attrs |= {"topk": {"k": 1, "dim": 0, "largest": True}, "max": {"dim": 0, "keepdim": False}}
    attrs["min"] = attrs["max"]
    with pytest.raises(TypeError, match=f"^{name}: expected real values, not complex64"):
        apply(OPS[name], *[z] * (2 if name in ("maximum", "minimum") else 1), **attrs.get(name, {}))


def test_means_of_something_may_be_none_at_all():
    x = Tensor(np.empty((0, 3), np.float32), True)
    y = x.mean(1)
    assert y.shape == (0,)
    y.sum().backward()
    assert x.grad.shape == (0, 3)


def test_a_dimension_that_stays_as_it_is_may_be_empty():
    check_vjp(OPS["pad"], normal(0, 3), widths=((0, 0), (2, 1)), mode="reflect", value=0.0)


def test_no_channels_at_all_are_legal():
    check_vjp(OPS["batch_norm"], normal(3, 0, 5), normal(0), normal(0), eps=1e-5)
