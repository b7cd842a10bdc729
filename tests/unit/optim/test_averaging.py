"""Averages of weights against averages of what the weights were."""

import ml_dtypes
import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor


def steps(model, count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        for p in model.parameters():
            p.data[...] = rng.standard_normal(p.shape)
        yield [p.data.copy() for p in model.parameters()]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_of_all_weights(dtype):
    model = nn.Linear(3, 2, dtype=dtype)
    averaged = optim.AveragedModel(model)
    seen = []
    for weights in steps(model, 5):
        averaged.update_parameters(model)
        seen.append(weights)
    for p, *values in zip(averaged.module.parameters(), *seen, strict=True):
        assert p.dtype == dtype
        np.testing.assert_allclose(p.data, np.mean(values, 0), rtol=1e-5)
    x = Tensor(np.ones((1, 3), dtype))
    np.testing.assert_array_equal(averaged(x).data, averaged.module(x).data)


def test_the_exponential_mean():
    model = nn.Linear(3, 2, dtype=np.float64)
    averaged = optim.AveragedModel(model, avg_fn=optim.get_ema_avg_fn(0.9))
    want = None
    for weights in steps(model, 5):
        averaged.update_parameters(model)
        want = weights if want is None else [0.9 * a + 0.1 * w for a, w in zip(want, weights, strict=True)]
    for p, value in zip(averaged.module.parameters(), want, strict=True):
        np.testing.assert_allclose(p.data, value, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_averages_go_on_where_a_step_is_below_their_precision(dtype):
    model = nn.Linear(1, 1).to(dtype)
    first = optim.AveragedModel(model, avg_fn=optim.get_ema_avg_fn(0.999))
    model.weight.data[...] = 0
    first.update_parameters(model)
    model.weight.data[...] = 1
    for _ in range(1500):
        first.update_parameters(model)
    later = optim.AveragedModel(model, avg_fn=optim.get_ema_avg_fn(0.999))
    later.load_state_dict(first.state_dict())
    for _ in range(1500):
        later.update_parameters(model)
    assert later.module.weight.dtype == dtype
    assert later.module.weight.data.astype(float) == pytest.approx(1 - 0.999**3000, rel=5e-3)
    assert first.state_dict()["module.weight"].dtype == np.float32


def test_buffers_are_copied_or_averaged():
    model = nn.Linear(1, 1)
    model.register_buffer("count", np.zeros(1))
    for use, want in ((False, 3.0), (True, 2.0)):
        averaged = optim.AveragedModel(model, use_buffers=use)
        for value in (1.0, 2.0, 3.0):
            model.buffers["count"].data[...] = value
            averaged.update_parameters(model)
        assert averaged.module.buffers["count"].item() == pytest.approx(want)


def test_the_copy_has_no_hooks_and_no_gradients():
    model = nn.Linear(2, 2)
    model.pre.append(lambda _: pytest.fail("a hook of the original ran"))
    for p in model.parameters():
        p.grad = p.home = np.ones(p.shape, np.float32)
        p.register_post_accumulate_grad_hook(lambda _: None)
    averaged = optim.AveragedModel(model)
    assert all(p.grad is None and p.home is None and not p.done_hooks for p in averaged.module.parameters())
    averaged(Tensor(np.ones((1, 2), np.float32)))
    assert len(model.pre) == 1


def test_state_goes_on():
    model = nn.Linear(2, 2)
    first, later = optim.AveragedModel(model), optim.AveragedModel(model)
    for _ in steps(model, 3):
        first.update_parameters(model)
    later.load_state_dict(first.state_dict())
    assert later.n_averaged == 3
    np.testing.assert_array_equal(later.module.weight.data, first.module.weight.data)
    buffered = nn.Linear(2, 2)
    buffered.register_buffer("count", np.zeros(3))
    for other in (nn.Linear(2, 2, bias=False), nn.Linear(1, 2), buffered):  # the second would be broadcast
        with pytest.raises(ValueError, match="has others"):
            later.update_parameters(other)


def test_it_is_used_as_the_model():
    averaged = optim.AveragedModel(nn.Linear(2, 2))
    assert averaged.eval() is averaged
    assert not averaged.module.training
    assert averaged.train().module.training
    assert [*map(id, averaged.parameters())] == [*map(id, averaged.module.parameters())]
    with pytest.raises(ValueError, match="n_averaged"):
        averaged.load_state_dict(averaged.module.state_dict())


def test_batch_norms_get_the_mean_over_batches():
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((8, 3)).astype(np.float32) * k for k in (1, 2, 3)]
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=0.3), nn.Linear(3, 2)).eval()
    averaged = optim.AveragedModel(model)
    averaged.module[0].buffers["running_mean"].data[...] = 7
    optim.update_bn([Tensor(batches[0]), (Tensor(batches[1]), "target"), [Tensor(batches[2])]], averaged)
    norm = averaged.module[0]
    np.testing.assert_allclose(norm.running_mean.data, np.mean([b.mean(0) for b in batches], 0), atol=1e-6)
    np.testing.assert_allclose(norm.running_var.data, np.mean([b.var(0, ddof=1) for b in batches], 0), rtol=1e-5)
    assert (norm.momentum, norm.training) == (0.3, False)
    np.testing.assert_array_equal(model[0].running_mean.data, 0)
    with pytest.raises(ValueError, match="BatchNorm1d"):
        optim.update_bn([Tensor(batches[0][:, :2])], model)
    assert (model[0].momentum, model[0].training) == (0.3, False)
    optim.update_bn([], nn.Linear(2, 2))
