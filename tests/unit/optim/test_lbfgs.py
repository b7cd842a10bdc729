"""L-BFGS: quadratics are solved in as many iterations as they have dimensions; the Rosenbrock valley; its state."""

import ml_dtypes
import numpy as np
import pytest

from hpcdist import optim
from hpcdist.autograd import Tensor

RNG = np.random.default_rng(0)
A = RNG.standard_normal((6, 6))
A = A @ A.T + np.eye(6)
B = RNG.standard_normal(6)


def quadratic(params):
    (x, y), rhs = params, Tensor(B)
    z = Tensor(np.eye(6)[:, :2]) @ x.reshape(2, 1) + Tensor(np.eye(6)[:, 2:]) @ y.reshape(4, 1)
    return (z * (Tensor(A) @ z)).sum() * 0.5 - (z.reshape(6) * rhs).sum()


def rosenbrock(params):
    x, y = params
    return ((1 - x) ** 2).sum() + ((y - x * x) ** 2).sum() * 100


def minimise(params, loss, calls, **options):
    optimizer = optim.LBFGS([("x", params[0]), ("y", params[1])], **options)
    return [optimizer.step(closure(optimizer, params, loss)).item() for _ in range(calls)], optimizer


def closure(optimizer, params, loss):
    def compute():
        optimizer.zero_grad()
        value = loss(params)
        value.backward()
        return value

    return compute


def start(x, y):
    return Tensor(np.array(x, float), True), Tensor(np.array(y, float), True)


def test_a_quadratic_is_solved():
    params = start([0] * 2, [0] * 4)
    minimise(params, quadratic, 2, line_search_fn="strong_wolfe", tolerance_change=0.0, tolerance_grad=1e-12)
    np.testing.assert_allclose(np.concatenate([p.data for p in params]), np.linalg.solve(A, B), rtol=1e-9)


def test_fixed_steps_solve_it_too():
    params = start([0] * 2, [0] * 4)
    minimise(params, quadratic, 5, tolerance_change=0.0)
    np.testing.assert_allclose(np.concatenate([p.data for p in params]), np.linalg.solve(A, B), rtol=1e-6)


def test_the_valley_is_followed():
    params = start([-1.2], [1.0])
    losses, optimizer = minimise(params, rosenbrock, 6, line_search_fn="strong_wolfe", tolerance_change=1e-14)
    np.testing.assert_allclose([p.item() for p in params], 1, atol=1e-6)
    assert losses == sorted(losses, reverse=True)
    assert optimizer.state["x"]["n_iter"] <= 120


def test_it_goes_on_from_its_state_in_another_order():
    options = {"line_search_fn": "strong_wolfe", "max_iter": 5, "history_size": 3}
    whole = start([-1.2], [1.0])
    minimise(whole, rosenbrock, 4, **options)
    params = start([-1.2], [1.0])
    _, first = minimise(params, rosenbrock, 2, **options)
    later = optim.LBFGS([("y", params[1]), ("x", params[0])], **options)
    later.load_state_dict(first.state_dict())
    for _ in range(2):
        later.step(closure(later, params, rosenbrock))
    np.testing.assert_allclose([p.item() for p in params], [p.item() for p in whole], rtol=1e-8)


def test_what_it_cannot_do_is_said():
    x, y = start([1], [1])
    with pytest.raises(ValueError, match="one group"):
        optim.LBFGS([{"params": [x]}, {"params": [y]}])
    with pytest.raises(TypeError, match="closure"):
        optim.LBFGS([x]).step()
    with pytest.raises(ValueError, match="strong_wolfe"):
        optim.LBFGS([x], line_search_fn="armijo")


def test_a_parameter_without_gradient_stays():
    x, y = start([3.0], [2.0])
    optimizer = optim.LBFGS([x, y])

    def compute():
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss

    optimizer.step(compute)
    assert y.item() == 2.0
    assert abs(x.item()) < 1e-6


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats_are_followed_in_single_precision(dtype):
    x, none = Tensor(np.full(2, 3, dtype), True), Tensor(np.zeros((0, 2), dtype), True)
    optimizer = optim.LBFGS([x, none], line_search_fn="strong_wolfe")
    for _ in range(3):
        optimizer.step(closure(optimizer, [x], lambda params: (params[0] * params[0]).sum()))
    assert x.dtype == dtype
    np.testing.assert_array_equal(x.data.astype(float), 0)
    assert optimizer.state["0"]["direction"].dtype == np.float32


def test_it_begins_anew_where_a_parameter_has_no_state():
    params = start([-1.2], [1.0])
    _, first = minimise(params, rosenbrock, 2, line_search_fn="strong_wolfe", max_iter=5)
    saved = first.state_dict()
    later = optim.LBFGS([("x", params[0]), ("y", params[1])], line_search_fn="strong_wolfe", max_iter=5)
    later.load_state_dict({**saved, "state": {"x": saved["state"]["x"]}})
    assert later.state == {}
    later.step(closure(later, params, rosenbrock))
    assert 1 <= later.state["y"]["n_iter"] <= 5


def test_a_loss_that_is_no_number_ends():
    x = Tensor(np.ones(2), True)
    optimizer = optim.LBFGS([x], line_search_fn="strong_wolfe")
    assert np.isnan(optimizer.step(closure(optimizer, [x], lambda params: (params[0] * float("nan")).sum())).item())
    assert optimizer.state["0"]["func_evals"] < 40
