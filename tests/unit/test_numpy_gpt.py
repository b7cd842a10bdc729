"""The oracle has oracles too: finite differences, closed forms, hand-computed optimizer steps."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy_gpt as gpt

VARIANTS = [
    {},
    {"mlp": "gelu"},
    {"mlp": "swiglu", "norm": "rms", "positions": "rotary"},
    {"norm": "rms"},
    {"positions": "rotary"},
]


def example(dtype=np.float64, **kw):
    config = gpt.Config(num_layers=2, num_heads=2, width=8, **kw)
    rng = np.random.default_rng(3)
    tokens, targets = rng.integers(0, 7, (2, 2, 5))
    return gpt.random_weights(config, 7, 6, dtype=dtype), tokens, targets, config


@pytest.mark.parametrize("kw", VARIANTS, ids=str)
def test_gradients_are_central_differences(kw):
    weights, tokens, targets, config = example(**kw)
    _, grads = gpt.loss_and_grads(weights, tokens, targets, config)
    assert set(grads) == set(weights)
    rng = np.random.default_rng(0)
    for name, grad in grads.items():
        assert grad.shape == weights[name].shape
        direction = rng.standard_normal(grad.shape)

        def loss_at(h, name=name, direction=direction):
            return gpt.loss_and_grads(weights | {name: weights[name] + h * direction}, tokens, targets, config)[0]

        h = 1e-4  # the five-point stencil errs by h^4 and by rounding / h
        slope = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h)
        np.testing.assert_allclose((grad * direction).sum(), slope, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kw", VARIANTS, ids=str)
def test_float32_stays_float32_and_agrees(kw):
    weights, tokens, targets, config = example(**kw)
    loss, grads = gpt.loss_and_grads(weights, tokens, targets, config)
    single = {name: w.astype(np.float32) for name, w in weights.items()}
    loss32, grads32 = gpt.loss_and_grads(single, tokens, targets, config)
    assert loss32.dtype == np.float32
    assert {g.dtype for g in grads32.values()} == {np.dtype(np.float32)}
    np.testing.assert_allclose(loss32, loss, rtol=1e-5)
    for name in grads:
        np.testing.assert_allclose(grads32[name], grads[name], atol=1e-5)


def test_zero_weights_give_the_uniform_loss():
    weights, tokens, targets, config = example()
    zero = {name: np.zeros_like(w) for name, w in weights.items()}
    assert gpt.loss_and_grads(zero, tokens, targets, config)[0] == pytest.approx(math.log(7), abs=1e-15)


@pytest.mark.parametrize("kw", VARIANTS, ids=str)
def test_no_token_sees_the_future(kw):
    weights, tokens, _, config = example(**kw)
    changed = tokens.copy()
    changed[:, 3] = (changed[:, 3] + 1) % 7
    before, after = gpt.logits(weights, tokens, config), gpt.logits(weights, changed, config)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert np.abs(before[:, 3:] - after[:, 3:]).min(axis=-1).max() > 1e-6


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    q, k = np.random.default_rng(0).standard_normal((2, 6))
    rows = np.ones((9, 1))
    rq, rk = gpt.rotate(q * rows), gpt.rotate(k * rows)
    np.testing.assert_allclose((rq**2).sum(-1), (q**2).sum())
    dots = rq @ rk.T
    for distance in range(9):
        np.testing.assert_allclose(np.diagonal(dots, distance), dots[0, distance], rtol=1e-12)
    np.testing.assert_allclose(gpt.rotate(rq, -1), q * rows)


def test_swiglu_width_is_a_multiple_of_eight():
    for width in range(8, 200, 8):
        hidden = gpt.Config(num_layers=1, num_heads=1, width=width, mlp="swiglu").hidden
        assert hidden % 8 == 0
        assert 8 * width / 3 <= hidden < 8 * width / 3 + 8


def test_adamw_reproduces_case_b37():
    # A starts at 1.0, lr 0.1, no decay, gradients 1, 2, 3, 4
    weights, state = {"A": np.ones(5)}, {}
    for t, g in enumerate((1.0, 2.0, 3.0, 4.0), start=1):
        gpt.adamw_step(weights, {"A": np.full(5, g)}, state, t, 0.1, weight_decay=0.0)
        if t == 3:
            np.testing.assert_allclose(weights["A"], 0.70768167706, atol=1e-10)
            np.testing.assert_allclose(state["A"][0], 0.561, rtol=1e-12)
            np.testing.assert_allclose(state["A"][1], 0.013994001, rtol=1e-9)
    np.testing.assert_allclose(weights["A"], 0.61164065049, atol=1e-10)


def test_adamw_decay_is_decoupled():
    weights = {"w": np.array([2.0])}
    gpt.adamw_step(weights, {"w": np.array([0.0])}, {}, 1, 0.1, weight_decay=0.5)
    np.testing.assert_allclose(weights["w"], 2.0 * (1 - 0.05))


def test_training_lowers_the_loss():
    weights, tokens, targets, config = example()
    state, losses = {}, []
    for t in range(1, 31):
        loss, grads = gpt.loss_and_grads(weights, tokens, targets, config)
        gpt.adamw_step(weights, grads, state, t, 0.02)
        losses.append(loss)
    assert losses[-1] < 0.2 * losses[0]
