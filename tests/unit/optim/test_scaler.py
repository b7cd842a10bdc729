"""Scaling of losses: steps are those without it; what is not finite is skipped, and the scale falls."""

import numpy as np
import pytest

from hpcdist import optim
from hpcdist.autograd import Tensor


def step(p, optimizer, scaler, factor=1.0, unscale=False):
    optimizer.zero_grad()
    scaler.scale((p * p * factor * factor).sum()).backward()
    if unscale:
        scaler.unscale_(optimizer)
        np.testing.assert_allclose(p.grad, 2 * p.data, rtol=1e-6)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_steps_are_those_without_a_scale(dtype, unscale):
    p, q = (Tensor(np.array([1.0, -0.5], dtype), True) for _ in range(2))
    scaled, plain = optim.SGD([p], lr=0.125), optim.SGD([q], lr=0.125)
    scaler, none = optim.GradScaler(init_scale=256.0), optim.GradScaler(enabled=False)
    for _ in range(3):
        step(p, scaled, scaler, unscale=unscale)
        step(q, plain, none)
    np.testing.assert_allclose(p.data.astype(float), q.data.astype(float), rtol=2e-3 if dtype is np.float16 else 1e-6)
    assert (scaler.get_scale(), none.get_scale()) == (256.0, 1.0)


def test_gradients_too_small_for_the_type_are_rescued():
    p = Tensor(np.ones(1, np.float16), True)
    scaler = optim.GradScaler(init_scale=2.0**12)
    step(p, optim.SGD([p], lr=2.0**22), scaler, factor=2.0**-13)  # the gradient, 2**-25, is 0 in float16
    assert p.item() == 1 - 2.0**-3


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_step_that_is_not_finite_is_skipped(bad):
    p = Tensor(np.ones(2), True)
    optimizer, scaler = optim.Adam([p], lr=0.1), optim.GradScaler(init_scale=8.0, growth_interval=2)
    step(p, optimizer, scaler, factor=bad)
    np.testing.assert_array_equal(p.data, 1)
    assert optimizer.state == {}
    assert scaler.get_scale() == 4.0
    for scale in (4.0, 8.0, 8.0, 16.0):
        step(p, optimizer, scaler)
        assert scaler.get_scale() == scale
    assert optimizer.state["0"]["step"] == 4


def test_all_ranks_agree():
    p = Tensor(np.ones(2), True)
    scaler = optim.GradScaler(init_scale=8.0)
    scaler.agree = lambda found: True  # another rank found one
    step(p, optim.SGD([p]), scaler)
    np.testing.assert_array_equal(p.data, 1)


def test_large_float64_gradients_are_finite():
    p = Tensor(np.ones(2), True)
    scaler, optimizer = optim.GradScaler(init_scale=2.0), optim.SGD([p], lr=1e-200)
    p.grad = np.full(2, 1e200)  # squares are not
    scaler.step(optimizer)
    np.testing.assert_allclose(p.data, 0.5)


@pytest.mark.parametrize("again", ["step", "unscale_"])
def test_a_step_is_taken_once_an_update(again):
    p = Tensor(np.ones(2), True)
    scaler, optimizer, other = optim.GradScaler(init_scale=2.0), optim.SGD([p], lr=0.5), optim.SGD([p], lr=0.5)
    p.grad = np.full(2, 2.0)
    scaler.step(optimizer)
    p.grad = np.full(2, np.inf)  # would pass as finite: it was looked for already
    with pytest.raises(RuntimeError, match="taken already"):
        getattr(scaler, again)(optimizer)
    np.testing.assert_array_equal(p.data, 0.5)
    assert scaler.step(other) is None
    scaler.update()
    assert scaler.get_scale() == 1.0
    scaler.step(optimizer)


def test_order_of_calls_and_options():
    p = Tensor(np.ones(2), True)
    scaler, optimizer = optim.GradScaler(), optim.SGD([p])
    with pytest.raises(RuntimeError, match="no step"):
        scaler.update()
    p.grad = np.ones(2)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already"):
        scaler.unscale_(optimizer)
    scaler.update(32.0)
    later = optim.GradScaler()
    later.load_state_dict(scaler.state_dict())
    assert later.get_scale() == 32.0
    for scale in (0.0, -1.0, np.inf, np.nan, "cpu"):
        with pytest.raises(ValueError, match="init_scale"):
            optim.GradScaler(scale)
        with pytest.raises(ValueError, match="new_scale"):
            scaler.update(scale)
    with pytest.raises(ValueError, match="_growth_tracker"):
        later.load_state_dict({"scale": 2.0})
    assert later.get_scale() == 32.0
    with pytest.raises(ValueError, match="growth_factor"):
        optim.GradScaler(growth_factor=1.0)
