"""Twenty steps of every optimizer against its formula, in plain NumPy."""

import ml_dtypes
import numpy as np
import pytest

from hpcdist import optim
from hpcdist.autograd import Tensor
from hpcdist.backends import flags

STEPS = 20


def moments(s, g, t, beta1, beta2):
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * g * g
    return s["m"] / (1 - beta1**t), s["v"] / (1 - beta2**t)


def adam(p, g, s, t, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False):
    m, v = moments(s, g + weight_decay * p, t, *betas)
    if amsgrad:
        s["top"] = np.maximum(s.get("top", 0), s["v"])
        v = s["top"] / (1 - betas[1] ** t)
    return p - lr * m / (np.sqrt(v) + eps)


def adamw(p, g, s, t, lr, weight_decay=1e-2, **options):
    return adam(p * (1 - lr * weight_decay), g, s, t, lr, **options)


def sgd(p, g, s, t, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
    g = g + weight_decay * p
    s["v"] = momentum * s["v"] + (1 - dampening) * g if "v" in s else g
    return p - lr * (g + momentum * s["v"] if nesterov else s["v"] if momentum else g)


def rmsprop(p, g, s, t, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False):
    g = g + weight_decay * p
    s["v"] = alpha * s.get("v", 0) + (1 - alpha) * g * g
    s["m"] = alpha * s.get("m", 0) + (1 - alpha) * g
    step = g / (np.sqrt(s["v"] - centered * s["m"] ** 2) + eps)
    s["b"] = momentum * s.get("b", 0) + step
    return p - lr * s["b"]


def adagrad(p, g, s, t, lr=1e-2, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10):
    g = g + weight_decay * p
    s["sum"] = s.get("sum", initial_accumulator_value) + g * g
    return p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(s["sum"]) + eps)


def lamb(p, g, s, t, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
    m, v = moments(s, g, t, *betas)
    r = m / (np.sqrt(v) + eps) + weight_decay * p
    return p - lr * np.linalg.norm(p) / np.linalg.norm(r) * r


def lars(p, g, s, t, lr, momentum=0.9, weight_decay=0.0, trust_coefficient=1e-3, eps=1e-8):
    norm = np.linalg.norm
    rate = lr * trust_coefficient * norm(p) / (norm(g) + weight_decay * norm(p) + eps)
    s["v"] = momentum * s.get("v", 0) + rate * (g + weight_decay * p)
    return p - s["v"]


CASES = [
    (optim.SGD, sgd, {"lr": 0.1}),
    (optim.SGD, sgd, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    (optim.SGD, sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (optim.Adam, adam, {"lr": 0.05}),
    (optim.Adam, adam, {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.3}),
    (optim.Adam, adam, {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.3, "amsgrad": True}),
    (optim.AdamW, adamw, {"lr": 0.05}),
    (optim.AdamW, adamw, {"lr": 0.05, "betas": (0.8, 0.9), "amsgrad": True, "weight_decay": 0.2}),
    (optim.RMSprop, rmsprop, {}),
    (optim.RMSprop, rmsprop, {"lr": 0.05, "alpha": 0.9, "centered": True, "momentum": 0.5, "weight_decay": 0.1}),
    (optim.Adagrad, adagrad, {}),
    (optim.Adagrad, adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3}),
    (optim.LAMB, lamb, {"lr": 0.05}),
    (optim.LAMB, lamb, {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.2}),
    (optim.LARS, lars, {"lr": 0.5}),
    (optim.LARS, lars, {"lr": 0.5, "momentum": 0.5, "weight_decay": 0.2, "trust_coefficient": 0.1}),
]
IDS = [f"{kind.__name__}-{i}" for i, (kind, _, _) in enumerate(CASES)]
KINDS = list(dict.fromkeys(kind for kind, _, _ in CASES))


def gradients(shape):
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape) for _ in range(STEPS)]


def run(kind, options, dtype, scale=1.0, parts=1, sign=1, **more):
    p = Tensor(np.random.default_rng(0).standard_normal((5, 7)).astype(dtype), True)
    optimizer = kind([p], **options, **more)
    for g in sign * np.array(gradients(p.shape)):
        p.grad = np.stack([g / parts] * parts).astype(dtype) / dtype(scale) if parts > 1 else (g / scale).astype(dtype)
        optimizer.grad_scale = scale
        optimizer.step()
    return p.data


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 3e-6)])
@pytest.mark.parametrize("off", [(), ("*",)], ids=["compiled", "generic"])
@pytest.mark.parametrize(("kind", "formula", "options"), CASES, ids=IDS)
def test_steps_follow_the_formula(kind, formula, options, off, dtype, tolerance):
    p, state = np.random.default_rng(0).standard_normal((5, 7)).astype(dtype).astype(float), {}
    for t, g in enumerate(gradients(p.shape), 1):
        p = formula(p, g.astype(dtype).astype(float), state, t, **options)
    with flags.kernels(off=off):
        np.testing.assert_allclose(run(kind, options, dtype), p, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "formula", "options"), CASES, ids=IDS)
def test_a_pending_scale_multiplies_gradients_once(kind, formula, options):
    want = run(kind, options, np.float64)
    np.testing.assert_allclose(run(kind, options, np.float64, scale=1024.0), want, rtol=1e-12)
    np.testing.assert_allclose(run(kind, options, np.float64, scale=4.0, parts=2), want, rtol=1e-12)
    p = Tensor(np.ones(3), True)
    optimizer = kind([p], **options)
    optimizer.grad_scale = 7.0
    optimizer.step()
    assert optimizer.grad_scale == 1.0


@pytest.mark.parametrize(("kind", "formula", "options"), CASES, ids=IDS)
def test_maximize_goes_the_other_way(kind, formula, options):
    np.testing.assert_array_equal(
        run(kind, options, np.float64, maximize=True), run(kind, options, np.float64, sign=-1)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_from_its_state(kind):
    def steps(p, optimizer, these):
        for g in these:
            p.grad = g
            optimizer.step()

    options = {"momentum": 0.9} if kind in (optim.SGD, optim.RMSprop) else {}
    grads = gradients((4,))
    whole, first = Tensor(np.ones(4), True), Tensor(np.ones(4), True)
    steps(whole, kind([("p", whole)], **options), grads)
    before = kind([("p", first)], **options)
    steps(first, before, grads[:7])
    second = Tensor(first.data.copy(), True)
    after = kind([("p", second)], **options)
    numbers_as_in_a_file = {k: np.asarray(v) for k, v in before.state["p"].items()}
    after.load_state_dict({**before.state_dict(), "state": {"p": numbers_as_in_a_file}})
    assert {type(v) for v in after.state["p"].values()} <= {int, float, np.ndarray}
    steps(second, after, grads[7:])
    np.testing.assert_array_equal(second.data, whole.data)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_16_bit_floats_remember_in_single_precision(kind, dtype):
    p = Tensor(np.ones(3, dtype), True)
    p.grad = np.full(3, 2**-13, dtype)
    optimizer = kind([p], lr=2**-7, **({"momentum": 0.9} if kind is optim.SGD else {}))
    optimizer.grad_scale = 2**-12
    optimizer.step()
    assert p.dtype == dtype
    kept = [v for v in optimizer.state["0"].values() if isinstance(v, np.ndarray)]
    assert kept
    assert all(v.dtype == np.float32 and (v != 0).all() for v in kept)


@pytest.mark.parametrize("kind", KINDS)
def test_no_elements_and_zeros(kind):
    for shape in ((0, 3), (), (2,)):
        p = Tensor(np.zeros(shape), True)
        p.grad = np.zeros(shape)
        kind([p]).step()
        np.testing.assert_array_equal(p.data, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_closure_gives_the_loss(kind):
    p = Tensor(np.ones(2), True)
    optimizer = kind([p])

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2
    assert (p.data < 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_below_zero_are_refused(kind):
    p = Tensor(np.ones(2), True)
    for option in ("lr", "weight_decay"):
        for value in (-1.0, float("nan")):
            with pytest.raises(ValueError, match=f"{kind.__name__}: {option}"):
                kind([p], **{option: value})
    if "betas" in kind([p]).defaults:
        with pytest.raises(ValueError, match="betas"):
            kind([p], betas=(0.9, 1.0))


def test_a_variance_that_rounds_below_zero_is_zero():
    p = Tensor(np.zeros(64, np.float32), True)
    optimizer = optim.RMSprop([p], lr=1e-3, alpha=0.9, eps=1e-3, centered=True)
    p.grad = np.linspace(0.01, 1, 64, dtype=np.float32)
    for _ in range(300):
        optimizer.step()
    assert (optimizer.state["0"]["square_avg"] < optimizer.state["0"]["grad_avg"] ** 2).any()
    assert np.isfinite(p.data).all()


def test_clipping_folded_into_the_step_equals_clipping_before_it():
    rng = np.random.default_rng(0)
    start, grads = rng.standard_normal((2, 3)), rng.standard_normal((2, 3)) * 10
    before, folded = [[Tensor(x.copy(), True) for x in start] for _ in range(2)]
    for params in (before, folded):
        for p, g in zip(params, grads, strict=True):
            p.grad = g.copy()
    norm = optim.clip_grad_norm_(before, 1.0)
    optim.SGD(before, lr=0.1).step()
    optimizer = optim.SGD(folded, lr=0.1)
    assert optimizer.clip_grad_norm_(1.0) == pytest.approx(norm) == pytest.approx(np.linalg.norm(grads))
    np.testing.assert_array_equal([p.grad for p in folded], grads)
    optimizer.step()
    np.testing.assert_allclose([p.data for p in folded], [p.data for p in before], rtol=1e-15)
    optimizer.grad_scale = 0.5
    assert optimizer.clip_grad_norm_(100.0) == pytest.approx(norm / 2)
    assert optimizer.grad_scale == 0.5


def test_an_infinite_norm_is_returned_without_a_warning():
    p, q = Tensor(np.zeros(2), True), Tensor(np.zeros(1), True)
    p.grad, q.grad = np.array([np.inf, 1.0]), np.ones(1)
    assert optim.clip_grad_norm_([p, q], 1.0) == np.inf
    np.testing.assert_array_equal(p.grad, [np.nan, 0])
    optimizer = optim.SGD([p], lr=1.0)
    assert np.isnan(optimizer.clip_grad_norm_(1.0))
    assert optimizer.grad_scale == 1


def test_clip_by_value():
    p, q = Tensor(np.zeros(4, np.float32), True), Tensor(np.zeros(1), True)
    p.grad = np.array([-3, 0.5, np.nan, np.inf], np.float32)
    optim.clip_grad_value_([p, q], 1.0)
    np.testing.assert_array_equal(p.grad, np.array([-1, 0.5, np.nan, 1], np.float32))
    assert q.grad is None
    with pytest.raises(ValueError, match="clip_value"):
        optim.clip_grad_value_(p, -1.0)


def test_parts_of_parameters_are_not_clipped_here():
    class Distributed(Tensor):
        def __init__(self, data):
            super().__init__(data, True)
            self.placements = ()

    p = Distributed(np.ones(2))
    p.grad = np.full(2, 9.0)
    for clip in (
        lambda: optim.clip_grad_norm_([p], 1.0),
        lambda: optim.clip_grad_norm_(p, 1.0, float("inf")),
        lambda: optim.clip_grad_value_([p], 1.0),
        lambda: optim.SGD([p]).clip_grad_norm_(1.0),
    ):
        with pytest.raises(TypeError, match=r"hd\.parallel\.clip_grad_norm_"):
            clip()
    np.testing.assert_array_equal(p.grad, 9)
