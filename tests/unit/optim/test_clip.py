"""Norms of any power, gradients of any dtype, strides and number of parts, and what is refused."""

import ml_dtypes
import numpy as np
import pytest

from hpcdist import optim
from hpcdist.autograd import Tensor

INF = float("inf")


def parameters(dtype=np.float64):
    rng = np.random.default_rng(0)
    params = [Tensor(np.zeros(shape, dtype), True) for shape in ((3, 4), (), (0, 2), (700, 2))]
    for p in params:
        p.grad = np.asarray(rng.standard_normal(p.shape[::-1]).T * 100, dtype)  # Fortran order
    return [*params, Tensor(np.zeros(3, dtype), True)]


def flat(params):
    return np.concatenate([p.grad.astype("f8").ravel() for p in params if p.grad is not None])


@pytest.mark.parametrize("power", [0.5, 1, 2, 3.0, INF])
@pytest.mark.parametrize(
    ("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 1e-6), (np.float16, 2e-3), (ml_dtypes.bfloat16, 1e-2)]
)
def test_all_gradients_together_get_the_norm(power, dtype, rtol):
    params = parameters(dtype)
    before = flat(params)
    want = np.linalg.norm(before, power) if power != 0.5 else (abs(before) ** 0.5).sum() ** 2
    assert optim.get_total_norm([p.grad for p in params[:-1]], power) == pytest.approx(want, rel=1e-6)
    assert optim.clip_grad_norm_(iter(params), 0.01, power) == pytest.approx(want, rel=1e-6)
    np.testing.assert_allclose(flat(params), before * 0.01 / want, rtol=rtol, atol=1e-6)
    assert {p.grad.dtype for p in params[:-1]} == {np.dtype(dtype)}
    assert params[-1].grad is None


def test_a_factor_that_16_bits_do_not_hold_is_not_rounded():
    p = Tensor(np.zeros(2, np.float16), True)
    p.grad = np.array([6e4, 0], np.float16)
    optim.clip_grad_norm_(p, 1e-4)  # the factor, 2e-9, is 0 in float16
    assert p.grad[0] == pytest.approx(1e-4, rel=1e-2)


def test_a_gradient_in_parts_has_the_norm_of_its_sum():
    p = Tensor(np.zeros(2), True)
    p.grad = np.array([[3.0, 4.0], [0.0, -4.0]])
    assert optim.SGD([p]).clip_grad_norm_(1.0) == 3
    assert optim.clip_grad_norm_(p, 1.0) == 3
    np.testing.assert_allclose(p.grad.sum(0), [1, 0], rtol=1e-6)
    with pytest.raises(TypeError, match=r"\(2, 2\)"):
        optim.clip_grad_value_(p, 1.0)


def test_what_is_not_finite_is_found_by_every_norm():
    for bad in (np.nan, INF):
        p, q = Tensor(np.zeros(2), True), Tensor(np.zeros(1), True)
        p.grad, q.grad = np.array([1.0, bad]), np.array([5.0])
        for power in (1, 2, INF):
            assert not np.isfinite(optim.get_total_norm([p.grad, q.grad], power))
            with pytest.raises(RuntimeError, match="finite"):
                optim.clip_grad_norm_([p, q], 1.0, power, True)
        np.testing.assert_array_equal(q.grad, 5)


def test_nothing_has_norm_zero():
    for power in (1, 2, INF):
        assert optim.clip_grad_norm_([], 1.0, power) == 0


def test_complex_gradients_have_magnitudes():
    p = Tensor(np.ones(1, complex), True)
    p.grad = np.array([3 + 4j])
    for power in (1, 2, INF):
        assert optim.get_total_norm(p.grad, power) == pytest.approx(5)
    with pytest.raises(TypeError, match="complex128"):
        optim.clip_grad_value_(p, 1.0)


def test_options_that_make_no_sense():
    p = parameters()[0]
    for norm in (0, -1, np.nan):
        with pytest.raises(ValueError, match="norm_type"):
            optim.clip_grad_norm_(p, 1.0, norm)
        with pytest.raises(ValueError, match="max_norm"):
            optim.clip_grad_norm_(p, -1.0 if norm == 0 else np.nan)
