"""Optimizers against formulas written out in plain NumPy."""

import math

import numpy as np
import numpy_gpt
import pytest

from hpcdist import optim
from hpcdist.autograd import Tensor
from hpcdist.backends import flags


def parameters(rng, dtype=np.float64):
    return {
        name: Tensor(rng.standard_normal(shape).astype(dtype), True) for name, shape in (("a", (3, 4)), ("b", (5,)))
    }


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-14), (np.float32, 1e-6)])
@pytest.mark.parametrize("off", [(), ("*",)])
def test_adamw_equals_the_formula(dtype, tolerance, off):
    rng = np.random.default_rng(0)
    params = parameters(rng, dtype)
    weights, state = {n: p.data.copy() for n, p in params.items()}, {}
    options = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
    optimizer = optim.AdamW(params.items(), **options)
    with flags.kernels(off=off):
        for t in range(1, 6):
            grads = {n: rng.standard_normal(p.shape).astype(dtype) for n, p in params.items()}
            for n, p in params.items():
                p.grad = grads[n].copy()
            optimizer.step()
            updated = numpy_gpt.adamw_step(weights, grads, state, t, **options)
            weights = weights if updated is None else updated
    for n, p in params.items():
        np.testing.assert_allclose(p.data, weights[n], rtol=tolerance, atol=tolerance)


def test_a_gradient_may_be_a_stack_of_parts():
    rng = np.random.default_rng(0)
    parts = rng.standard_normal((3, 5))
    one, two = Tensor(np.ones(5), True), Tensor(np.ones(5), True)
    one.grad, two.grad = parts, parts.sum(0)
    for p in (one, two):
        optim.AdamW([p], lr=0.1).step()
    np.testing.assert_allclose(one.data, two.data, rtol=1e-15)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_equals_the_formula(nesterov):
    rng = np.random.default_rng(0)
    p = Tensor(rng.standard_normal(4), True)
    x, v = p.data.copy(), None
    optimizer = optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    for _ in range(4):
        p.grad = rng.standard_normal(4)
        g = p.grad + 0.01 * x
        v = g if v is None else 0.9 * v + g
        x = x - 0.1 * (g + 0.9 * v if nesterov else v)
        optimizer.step()
    np.testing.assert_allclose(p.data, x, rtol=1e-14)


def test_parameters_without_a_gradient_stay():
    params = parameters(np.random.default_rng(0))
    before = params["b"].data.copy()
    params["a"].grad = np.ones((3, 4))
    optim.AdamW(params.items()).step()
    np.testing.assert_array_equal(params["b"].data, before)


def test_groups_have_options_of_their_own():
    a, b = Tensor(np.ones(2), True), Tensor(np.ones(2), True)
    optimizer = optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1)
    a.grad, b.grad = np.ones(2), np.ones(2)
    optimizer.step()
    assert a.data[0] == pytest.approx(0.9)
    assert b.data[0] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="here already"):
        optimizer.add_param_group({"params": [a]})
    with pytest.raises(ValueError, match="unknown options"):
        optimizer.add_param_group({"params": [Tensor(np.ones(1), True)], "momentun": 0.9})


def test_state_continues_where_it_was_saved():
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal(5) for _ in range(4)]

    def run(p, optimizer, these):
        for g in these:
            p.grad = g
            optimizer.step()

    whole = Tensor(np.ones(5), True)
    run(whole, optim.AdamW([("p", whole)]), grads)
    first = Tensor(np.ones(5), True)
    before = optim.AdamW([("p", first)])
    run(first, before, grads[:2])
    second = Tensor(first.data.copy(), True)
    after = optim.AdamW([("p", second)], lr=7.0)
    after.load_state_dict(before.state_dict())
    run(second, after, grads[2:])
    np.testing.assert_array_equal(second.data, whole.data)
    other = optim.AdamW([("q", second)])
    with pytest.raises(ValueError, match="parameters differ"):
        other.load_state_dict(before.state_dict())


def test_clipping_scales_to_the_norm():
    params = parameters(np.random.default_rng(0), np.float32)
    for p in params.values():
        p.grad = np.full(p.shape, 2.0, np.float32)
    norm = optim.clip_grad_norm_(params.values(), 1.0)
    assert norm == pytest.approx(math.sqrt(17 * 4))
    assert optim.get_total_norm(p.grad for p in params.values()) == pytest.approx(1.0, rel=1e-5)
    assert optim.clip_grad_norm_(params.values(), 5.0) == pytest.approx(1.0, rel=1e-5)
    assert params["a"].grad[0, 0] == pytest.approx(17**-0.5, rel=1e-5)
    params["b"].grad[0] = np.nan
    with pytest.raises(RuntimeError, match="finite"):
        optim.clip_grad_norm_(params.values(), 1.0, error_if_nonfinite=True)


def test_schedule_rises_and_falls_as_the_formula_says():
    p = Tensor(np.ones(1), True)
    optimizer = optim.SGD([p], lr=2.0)
    schedule = optim.LambdaLR(optimizer, optim.cosine_with_warmup(4, 12, final=0.1))
    seen = []
    for _ in range(13):
        seen.append(schedule.get_last_lr()[0])
        schedule.step()
    assert seen[:4] == pytest.approx([0.4, 0.8, 1.2, 1.6])
    assert seen[4] == pytest.approx(2.0)
    assert seen[8] == pytest.approx(2 * (0.1 + 0.9 * 0.5))
    assert seen[12] == pytest.approx(0.2)
    again = optim.LambdaLR(optim.SGD([p], lr=2.0), optim.cosine_with_warmup(4, 12, final=0.1))
    again.load_state_dict({"last_epoch": 8})
    assert again.get_last_lr() == [pytest.approx(seen[8])]


def test_wrong_options_are_errors():
    p = Tensor(np.ones(1), True)
    for make in (
        lambda: optim.AdamW([p], lr=-1),
        lambda: optim.AdamW([]),
        lambda: optim.SGD([p], nesterov=True),
        lambda: optim.cosine_with_warmup(5, 4),
        lambda: optim.AdamW([Tensor(np.ones((3, 2)).T, True)]),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 (each message is another)
            make()


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_two_parameters_never_share_a_name_and_with_it_their_state(kind):
    a, b = Tensor(np.ones(2), True), Tensor(np.ones(2), True)
    for params in (
        [("w", a), ("w", b)],
        [{"params": [("w", a)]}, {"params": [("w", b)]}],
        [{"params": [a]}, {"params": [("0", b)]}],  # names default to positions
    ):
        with pytest.raises(ValueError, match="here already"):
            kind(params)


def test_params_are_leaf_tensors():
    p = Tensor(np.ones(2), True)
    for params in (p, [p * 2], [np.ones(2)]):
        with pytest.raises(TypeError):
            optim.SGD(params)
    assert optim.SGD([{"params": p}]).param_groups[0]["params"] == [p]


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_a_parameter_without_elements_is_updated_like_any_other(kind):
    p = Tensor(np.empty((0, 3)), True)
    p.grad = np.empty((0, 3))
    kind([p]).step()
    assert p.shape == (0, 3)


def test_state_of_another_optimizer_is_refused():
    p = Tensor(np.ones(2), True)
    adam, sgd = optim.AdamW([p]), optim.SGD([p])
    with pytest.raises(ValueError, match="options differ"):
        sgd.load_state_dict(adam.state_dict())
    assert "betas" not in sgd.param_groups[0]
    with pytest.raises(ValueError, match="'q'"):
        adam.load_state_dict({"state": {"q": {"step": 1}}, "param_groups": adam.state_dict()["param_groups"]})


def test_the_norm_of_one_tensor_and_of_complex_gradients():
    p = Tensor(np.ones(1, np.complex128), True)
    p.grad = np.array([3 + 4j])
    assert optim.clip_grad_norm_(p, 1.0) == 5
    assert optim.get_total_norm(p.grad) == pytest.approx(1, rel=1e-6)
    np.testing.assert_allclose(p.grad, [0.6 + 0.8j], rtol=1e-6)
    with pytest.raises(TypeError, match="complex128"):
        optim.AdamW([p]).step()
