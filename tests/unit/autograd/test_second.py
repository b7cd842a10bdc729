"""Gradients of gradients: against the first form, differences, closed forms, and a differential equation."""

import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import OPS, Tensor, apply, check_vjp, grad, manual_seed
from hpcdist.autograd.second import SECOND


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def positive(*shape):
    return np.abs(normal(*shape)) + 1


CASES = [
    ("add", (normal(3, 1, 4), normal(2, 4)), {}),
    ("sub", (normal(3, 1, 4), normal(2, 4)), {}),
    ("mul", (normal(3, 1, 4), normal(2, 4)), {}),
    ("div", (normal(3, 4), positive(4)), {}),
    ("neg", (normal(3, 2),), {}),
    ("pow", (positive(3, 2),), {"exponent": 2.5}),
    ("maximum", (normal(3, 4), normal(4, seed=1)), {}),
    ("minimum", (normal(3, 4), normal(4, seed=1)), {}),
    ("clamp", (normal(3, 4),), {"min": -0.5, "max": None}),
    ("where", (normal(3, 4) > 0, normal(3, 4, seed=1), normal(4)), {}),
    ("cast", (normal(3, 2),), {"dtype": np.dtype(np.float64)}),
    ("exp", (normal(3, 2),), {}),
    ("log", (positive(3, 2),), {}),
    ("sqrt", (positive(3, 2),), {}),
    ("tanh", (normal(3, 2),), {}),
    ("sigmoid", (normal(3, 2),), {}),
    ("relu", (normal(3, 2),), {}),
    ("erf", (normal(3, 2),), {}),
    ("sin", (normal(3, 2),), {}),
    ("cos", (normal(3, 2),), {}),
    ("abs", (normal(3, 2),), {}),
    ("silu", (normal(3, 2),), {}),
    ("gelu", (normal(3, 2),), {"tanh": False}),
    ("gelu", (normal(3, 2),), {"tanh": True}),
    ("sum", (normal(3, 4, 2),), {"dim": (0, -1), "keepdim": True}),
    ("sum", (normal(3, 4, 2),), {"dim": None, "keepdim": False}),
    ("mean", (normal(3, 4, 2),), {"dim": 1, "keepdim": False}),
    ("matmul", (normal(2, 3, 4), normal(4, 5)), {}),
    ("linear", (normal(2, 3, 4), normal(5, 4), normal(5)), {}),
    ("linear", (normal(3, 4), normal(5, 4)), {}),
    ("reshape", (normal(3, 4, 2),), {"shape": (3, 8)}),
    ("transpose", (normal(3, 4, 2),), {"dims": (2, 0, 1)}),
    ("getitem", (normal(3, 4),), {"index": (slice(None), slice(1, 3))}),
    ("getitem", (normal(3, 4),), {"index": np.array([0, 0, 2])}),
    ("put", (normal(3, 4),), {"index": np.array([0, 0, 2]), "shape": (5, 4)}),
    ("cat", (normal(3, 4), normal(3, 2)), {"dim": 1}),
    ("stack", (normal(3, 4), normal(3, 4, seed=1)), {"dim": -1}),
    ("broadcast_to", (normal(3, 1, 4),), {"shape": (2, 3, 5, 4)}),
    ("split", (normal(3, 5),), {"sizes": (2, 3), "dim": -1}),
]
IDS = [f"{name}-{i}" for i, (name, _, _) in enumerate(CASES)]


def outputs(name, leaves, attrs):
    result = apply(OPS[name], *leaves, **attrs)
    return result if isinstance(result, tuple) else (result,)


def gradients(name, arrays, attrs, **how):
    """Return gradients of sum(fixed numbers * output ** 2): a function with curvature, whatever the operation."""
    leaves = [Tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    results = outputs(name, leaves, attrs)
    loss = sum(((t * t * normal(*t.shape, seed=9)).sum() for t in results[1:]), start=_weighted(results[0]))
    return grad(loss, [leaf for leaf in leaves if leaf.requires_grad], **how)


def _weighted(t):
    return (t * t * normal(*t.shape, seed=8)).sum()


def test_every_form_is_here():
    assert {name for name, _, _ in CASES} == SECOND.keys()


@pytest.mark.parametrize(("name", "arrays", "attrs"), CASES, ids=IDS)
def test_gradients_with_a_graph_are_the_same(name, arrays, attrs):
    plain, traced = gradients(name, arrays, attrs), gradients(name, arrays, attrs, create_graph=True)
    for a, b in zip(plain, traced, strict=True):
        assert b.dtype == a.dtype
        np.testing.assert_allclose(b.data, a, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "arrays", "attrs"), CASES, ids=IDS)
def test_their_gradients_equal_differences(name, arrays, attrs):
    def gradient(*leaves):
        floats = [t for t in leaves if t.requires_grad]
        results = outputs(name, leaves, attrs)
        loss = sum((_weighted(t) for t in results[1:]), start=_weighted(results[0]))
        return grad(loss, floats, create_graph=True)

    check_vjp(gradient, *arrays, tolerance=1e-6)


def test_derivatives_of_every_order():
    x = Tensor(np.linspace(0.1, 2.0, 7), True)
    y = x**5
    for factor, power in ((5, 4), (20, 3), (60, 2)):
        (y,) = grad(y.sum(), x, create_graph=True)
        np.testing.assert_allclose(y.data, factor * x.data**power, rtol=1e-12)
    (last,) = grad(y.sum(), x)
    np.testing.assert_allclose(last, 120 * x.data, rtol=1e-12)
    assert isinstance(last, np.ndarray)


def test_a_penalty_on_gradients_reaches_the_weights():
    manual_seed(0)
    layer = nn.Linear(3, 1, dtype=np.float64)
    x = Tensor(normal(5, 3), True)
    (slope,) = grad((layer(x) ** 2).sum(), x, create_graph=True)
    (slope * slope).sum().backward()
    # slope = 2 (x w + b) w: the penalty is 4 |w|^2 sum (x w + b)^2
    w, b, r = layer.weight.data, layer.bias.data, layer(x).data
    expected = 8 * (w * (r**2).sum() + (w @ w.T) * (r * x.data).sum(0))
    np.testing.assert_allclose(layer.weight.grad, expected, rtol=1e-10)
    np.testing.assert_allclose(layer.bias.grad, 8 * (w @ w.T)[0] * r.sum(0), rtol=1e-10)
    assert b.shape == (1,)


def test_operations_without_a_second_form_say_so():
    x = Tensor(normal(3, 4), True)
    y = apply(OPS["softmax"], x, dim=-1)
    with pytest.raises(RuntimeError, match="'softmax' cannot be differentiated again") as error:
        grad((y * y).sum(), x, create_graph=True)
    assert "matmul" in str(error.value)
    np.testing.assert_array_equal(grad((y * y).sum(), x)[0].shape, (3, 4))


def test_complex_values_say_so():
    x = Tensor(np.ones(2), True)
    y = (x * 1j) * 1j
    with pytest.raises(RuntimeError, match="real values"):
        grad(y, x, np.ones(2), create_graph=True)


def test_what_nothing_reaches():
    x, y = Tensor(np.ones(2), True), Tensor(np.ones(2), True)
    with pytest.raises(RuntimeError, match="allow_unused"):
        grad((x * 2).sum(), [x, y], create_graph=True)
    gx, gy = grad((x * 2).sum(), [x, y], create_graph=True, allow_unused=True)
    np.testing.assert_array_equal(gx.data, [2, 2])
    assert gy is None


def test_a_network_solves_a_differential_equation():
    """u'' = -pi^2 sin(pi x) on [0, 1], u(0) = u(1) = 0: the solution is sin(pi x)."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(a, b, dtype=np.float64) for a, b in ((1, 16), (16, 16), (16, 1)))

        def forward(self, x):
            first, second, last = self.layers
            return last(second(first(x).tanh()).tanh()) * x * (1 - x)

    manual_seed(1)
    net = Net()
    optimizer = optim.AdamW(net.named_parameters(), lr=1e-2, weight_decay=0)
    x = Tensor(np.linspace(0, 1, 21)[:, None], True)
    target = -(np.pi**2) * np.sin(np.pi * x.data)
    for step in range(400):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / 400)
        (slope,) = grad(net(x).sum(), x, create_graph=True)
        (curvature,) = grad(slope.sum(), x, create_graph=True)
        optimizer.zero_grad()
        x.grad = None
        ((curvature - target) ** 2).mean().backward()
        optimizer.step()
    error = np.abs(net(Tensor(np.linspace(0, 1, 101)[:, None])).data[:, 0] - np.sin(np.pi * np.linspace(0, 1, 101)))
    assert error.max() < 5e-3
