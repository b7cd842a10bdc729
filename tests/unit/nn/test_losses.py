"""Losses against their definitions in plain NumPy."""

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor
from hpcdist.nn import functional as F

RNG = np.random.default_rng(0)
X, Y = 2 * RNG.standard_normal((2, 3, 4))
P, T = RNG.uniform(0.05, 0.95, (2, 3, 4))
W = RNG.uniform(0.5, 2, 4)
LOGITS, TARGETS = 3 * RNG.standard_normal((2, 3, 5)), np.array([[1, -7, 4], [0, 2, 1]])
CLASS_WEIGHTS = RNG.uniform(0.5, 2, 5)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def bce(p, t, pos=1):
    return -(pos * t * np.log(p) + (1 - t) * np.log(1 - p))


def huber(d, delta):
    return np.where(abs(d) <= delta, d * d / 2, delta * (abs(d) - delta / 2))


PAIRS = {
    "mse": (nn.MSELoss, {}, (X, Y), (X - Y) ** 2),
    "l1": (nn.L1Loss, {}, (X, Y), abs(X - Y)),
    "huber": (nn.HuberLoss, {"delta": 0.7}, (X, Y), huber(X - Y, 0.7)),
    "smooth": (nn.SmoothL1Loss, {"beta": 0.7}, (X, Y), huber(X - Y, 0.7) / 0.7),
    "smooth0": (nn.SmoothL1Loss, {"beta": 0}, (X, Y), abs(X - Y)),
    "bce": (nn.BCELoss, {}, (P, T), bce(P, T)),
    "bce_weighted": (nn.BCELoss, {"weight": W}, (P, T), W * bce(P, T)),
    "logits": (nn.BCEWithLogitsLoss, {}, (X, T), bce(sigmoid(X), T)),
    "logits_weighted": (
        nn.BCEWithLogitsLoss,
        {"weight": W, "pos_weight": W + 1},
        (X, T),
        W * bce(sigmoid(X), T, W + 1),
    ),
    "kl": (nn.KLDivLoss, {}, (np.log(P), T), T * np.log(T / P)),
    "kl_log": (nn.KLDivLoss, {"log_target": True}, (np.log(P), np.log(T)), T * np.log(T / P)),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("name", PAIRS)
def test_losses_of_pairs(name, dtype, tolerance):
    kind, options, (x, y), want = PAIRS[name]
    options = {k: v.astype(dtype) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    for reduction, value in (("none", want), ("mean", want.mean()), ("sum", want.sum())):
        result = kind(**options, reduction=reduction)(Tensor(x.astype(dtype)), y.astype(dtype))
        assert result.dtype == dtype
        np.testing.assert_allclose(result.data, value, rtol=tolerance, atol=tolerance)


def test_the_divergence_of_a_batch():
    result = F.kl_div(Tensor(np.log(P)), T, reduction="batchmean")
    np.testing.assert_allclose(result.data, (T * np.log(T / P)).sum() / 3, rtol=1e-12)
    zero = F.kl_div(Tensor(np.log(P)), np.zeros((3, 4)))
    assert zero.item() == 0


def smoothed(weight, smoothing):
    """Return the loss of each target, and the weight of each."""
    log_p = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    q = (1 - smoothing) * np.eye(5)[TARGETS.clip(0)] + smoothing / 5
    counted = TARGETS != -7
    return -(q * weight * log_p).sum(-1) * counted, weight[TARGETS.clip(0)] * counted


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("weight", [None, CLASS_WEIGHTS])
def test_classes_with_weights_and_smoothing(weight, smoothing, dtype, tolerance):
    losses, weights = smoothed(np.ones(5) if weight is None else weight, smoothing)
    given = None if weight is None else weight.astype(dtype)
    for reduction, want in (("none", losses), ("sum", losses.sum()), ("mean", losses.sum() / weights.sum())):
        loss = nn.CrossEntropyLoss(given, ignore_index=-7, reduction=reduction, label_smoothing=smoothing)
        result = loss(Tensor(LOGITS.astype(dtype)), TARGETS)
        assert result.dtype == dtype
        np.testing.assert_allclose(result.data, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("weight", [None, CLASS_WEIGHTS])
def test_gradients_with_class_weights(weight):
    def value(x):
        return F.cross_entropy(Tensor(x), TARGETS, weight, -7, "mean", 0.3).item()

    logits = Tensor(LOGITS.copy(), True)
    F.cross_entropy(logits, TARGETS, weight, -7, "mean", 0.3).backward()
    for place in ((0, 0, 1), (0, 1, 2), (1, 2, 3)):
        step = np.zeros(LOGITS.shape)
        step[place] = 1e-6
        slope = (value(LOGITS + step) - value(LOGITS - step)) / 2e-6
        assert logits.grad[place] == pytest.approx(slope, abs=1e-9)


def test_the_linear_form_is_the_same():
    x, w = RNG.standard_normal((4, 3)), RNG.standard_normal((5, 3))
    targets = np.array([0, -100, 4, 1])
    for options in ({}, {"label_smoothing": 0.2}, {"reduction": "none"}, {"reduction": "sum"}):
        a, b = Tensor(x, True), Tensor(x, True)
        fused = F.linear_cross_entropy(a, Tensor(w), targets, **options)
        plain = F.cross_entropy(F.linear(b, Tensor(w)), targets, **options)
        np.testing.assert_allclose(fused.data, plain.data, rtol=1e-13)
        fused.sum().backward()
        plain.sum().backward()
        np.testing.assert_allclose(a.grad, b.grad, rtol=1e-12, atol=1e-14)


def test_logits_of_any_size_are_finite():
    for dtype in (np.float32, np.float64):
        x = Tensor(np.array([-1e4, 1e4, 0], dtype), True)
        loss = F.binary_cross_entropy_with_logits(x, np.array([0, 1, 1], dtype), reduction="none")
        np.testing.assert_allclose(loss.data, [0, 0, np.log(2)], rtol=1e-6)
        loss.sum().backward()
        np.testing.assert_allclose(x.grad, [0, 0, -0.5], rtol=1e-6)
    p = Tensor(np.array([0.0, 1.0]), True)
    loss = F.binary_cross_entropy(p, np.array([1.0, 1.0]), reduction="sum")
    loss.backward()
    assert loss.item() == 100
    np.testing.assert_allclose(p.grad, [-1e12, 0])


def test_no_rows():
    for reduction, want in (("none", np.zeros((0, 3))), ("sum", 0.0)):
        np.testing.assert_array_equal(F.mse_loss(Tensor(np.zeros((0, 3))), np.zeros((0, 3)), reduction).data, want)
    logits = Tensor(np.zeros((0, 5)), True)
    loss = F.cross_entropy(logits, np.zeros(0, int), label_smoothing=0.1)
    loss.backward()
    assert (loss.item(), logits.grad.shape) == (0, (0, 5))
    ignored = F.cross_entropy(Tensor(LOGITS[0]), np.full(3, -100), CLASS_WEIGHTS)
    assert ignored.item() == 0


def test_what_does_not_fit_is_said():
    for loss in (F.mse_loss, F.l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits, F.kl_div):
        with pytest.raises(ValueError, match=rf"{loss.__name__}: target.*\n.*\(3, 1\)"):
            loss(Tensor(X), np.zeros((3, 1)))
        with pytest.raises(ValueError, match="reduction"):
            loss(Tensor(X), Y, reduction="median")
    with pytest.raises(ValueError, match="delta"):
        F.huber_loss(Tensor(X), Y, delta=0)


def test_weights_are_saved_with_the_module():
    assert list(nn.CrossEntropyLoss(CLASS_WEIGHTS).state_dict()) == ["weight"]
    assert list(nn.BCEWithLogitsLoss(pos_weight=W).parameters()) == []
