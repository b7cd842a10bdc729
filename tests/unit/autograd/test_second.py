"""Gradients of gradients: against the first form, differences, closed forms, and a differential equation."""

import numpy as np
import pytest
from unit.autograd import cases_losses, cases_numeric, cases_sequences, cases_spatial
from unit.autograd.cases_second import CASES

from hpcdist import nn, optim
from hpcdist.autograd import OPS, Tensor, apply, check_vjp, grad, manual_seed
from hpcdist.autograd.functions import maximum
from hpcdist.autograd.second import SECOND

AREAS = [cases_losses, cases_numeric, cases_sequences, cases_spatial]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


IDS = [f"{name}-{i}" for i, (name, _, _) in enumerate(CASES)]


def outputs(name, leaves, attrs):
    result = apply(OPS[name], *leaves, **attrs)
    return result if isinstance(result, tuple) else (result,)


def gradients(name, arrays, attrs, **how):
    """Return gradients of sum(fixed numbers * output ** 2): a function with curvature, whatever the operation."""
    leaves = [Tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    results = outputs(name, leaves, attrs)
    loss = sum((_weighted(t) for t in results[1:] if t.requires_grad), start=_weighted(results[0]))
    return grad(loss, [leaf for leaf in leaves if leaf.requires_grad], **how)


def _weighted(t):
    return (t * t * normal(*t.shape, seed=8)).sum()


def test_every_form_is_here():
    assert {name for name, _, _ in CASES} == SECOND.keys() - {"gather"}  # that of hpcdist.parallel: tests/ddp_suite.py


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
        loss = sum((_weighted(t) for t in results[1:] if t.requires_grad), start=_weighted(results[0]))
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
    y = apply(OPS["swiglu"], x)
    with pytest.raises(RuntimeError, match="'swiglu' cannot be differentiated again") as error:
        grad((y * y).sum(), x, create_graph=True)
    assert "matmul" in str(error.value)
    np.testing.assert_array_equal(grad((y * y).sum(), x)[0].shape, (3, 4))


OTHERS = [case for area in AREAS for case in area.CASES if case[0] not in SECOND]


@pytest.mark.parametrize(("name", "arrays", "attrs"), OTHERS, ids=[f"{c[0]}-{i}" for i, c in enumerate(OTHERS)])
def test_all_others_say_so(name, arrays, attrs):
    leaves = [Tensor(a, requires_grad=a.dtype.kind in "fc") for a in arrays]
    results = [t for t in outputs(name, leaves, attrs) if t.requires_grad]
    for result in results:
        with pytest.raises(RuntimeError, match=f"{name!r} cannot be differentiated again"):
            grad(result, leaves[0], np.ones(result.shape), create_graph=True)


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


def test_magnitudes_of_complex_values_say_so():
    z = Tensor(np.ones(2, np.complex128), True)
    with pytest.raises(RuntimeError, match=r"(?s)real values.*complex ones at 'abs'"):
        grad(z.abs().sum(), z, create_graph=True)


def test_hooks_on_the_way_say_so():
    x = Tensor(normal(3), True)
    y = x * x
    y.register_hook(lambda g: 2 * g)
    with pytest.raises(RuntimeError, match="a hook at 'mul'"):
        grad((y * y).sum(), x, create_graph=True)
    remove = x.register_hook(lambda g: 2 * g)
    with pytest.raises(RuntimeError, match="a hook at 'exp'"):
        grad(x.exp().sum(), x, create_graph=True)
    remove()
    w = Tensor(normal(3), True)
    w.register_hook(lambda g: 2 * g)  # its gradient is not asked for
    np.testing.assert_allclose(grad((x.exp() * w).sum(), x, create_graph=True)[0].data, x.exp().data * w.data)


def test_cotangents_that_are_tensors_keep_their_graph_and_have_to_fit():
    x, v = Tensor(normal(3), True), Tensor(normal(3, seed=1), True)
    (product,) = grad(x * x, x, v, create_graph=True)
    product.sum().backward()
    np.testing.assert_allclose(v.grad, 2 * x.data)
    np.testing.assert_allclose(x.grad, 2 * v.data)
    (spread,) = grad(x * x, x, Tensor(np.array(2.0)), create_graph=True)
    np.testing.assert_allclose(spread.data, 4 * x.data)
    with pytest.raises(RuntimeError, match="another shape"):
        grad(x * x, x, Tensor(normal(1)), create_graph=True)
    with pytest.raises(RuntimeError, match="does not depend"):
        grad(Tensor(normal(3)), x, Tensor(normal(3)), create_graph=True)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3])
def test_powers_of_nothing(exponent):
    x = Tensor(np.array([0.0, 2.0]), True)
    first, second, third = [0, 1, 2, 3][exponent], [0, 0, 2, 6][exponent], [0, 0, 0, 6][exponent]
    (slope,) = grad((x**exponent).sum(), x, create_graph=True)
    np.testing.assert_array_equal(slope.data, [first * (exponent == 1), first * 2.0 ** max(exponent - 1, 0)])
    if exponent > 1:
        (slope,) = grad(slope.sum(), x, create_graph=True)
        np.testing.assert_array_equal(slope.data, [second * (exponent == 2), second * 2.0 ** (exponent - 2)])
        (slope,) = grad(slope.sum(), x, create_graph=True)
        np.testing.assert_array_equal(slope.data, [third, third])


@pytest.mark.parametrize(
    "choose", [lambda x: x.clamp(0, 2), lambda x: apply(OPS["relu"], x), lambda x: maximum(x, 0.0)]
)
def test_what_is_not_chosen_may_have_an_infinite_cotangent(choose):
    x = Tensor(np.array([-1.0, 1.0]), True)
    (slope,) = grad(choose(x), x, np.array([np.inf, 3.0]), create_graph=True)
    np.testing.assert_array_equal(slope.data, [0, 3])


@pytest.mark.parametrize("name", ["softmax", "cumsum", "norm", "linear", "matmul", "einsum", "stack", "pad", "sum"])
def test_no_elements(name):
    attrs = {
        "softmax": {"dim": 0}, "cumsum": {"dim": 0}, "norm": {"p": 2, "dim": 0, "keepdim": False},
        "einsum": {"equation": "ij,jk->ik"}, "stack": {"dim": 1}, "sum": {"dim": 0, "keepdim": False},
        "pad": {"widths": ((1, 0), (0, 2)), "mode": "constant", "value": 1.0},
    }.get(name, {})  # fmt: skip
    shapes = {"linear": [(0, 3), (2, 3)], "matmul": [(2, 0), (0, 3)], "einsum": [(2, 0), (0, 3)]}.get(name, [(0, 3)])
    shapes = [(0, 3), (0, 3)] if name == "stack" else shapes
    plain = gradients(name, [np.empty(s) if 0 in s else normal(*s) for s in shapes], attrs)
    traced = gradients(name, [np.empty(s) if 0 in s else normal(*s) for s in shapes], attrs, create_graph=True)
    for a, b in zip(plain, traced, strict=True):
        np.testing.assert_array_equal(b.data, a)
