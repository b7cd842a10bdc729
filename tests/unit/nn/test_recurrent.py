"""LSTM and GRU against their equations, one step after another, in plain NumPy."""

import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor, check_vjp, manual_seed


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_cell(x, h, c, w, u, b, d):
    i, f, g, o = np.split(x @ w.T + b + h @ u.T + d, 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_cell(x, h, _, w, u, b, d):
    (xr, xz, xn), (hr, hz, hn) = np.split(x @ w.T + b, 3, axis=1), np.split(h @ u.T + d, 3, axis=1)
    z = sigmoid(xz + hz)
    return (1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h, h


CELLS = {nn.LSTM: lstm_cell, nn.GRU: gru_cell}


def by_steps(module, x, h, c):
    """Return outputs and last states of all layers and ways."""
    p = {name: t.data for name, t in module.named_parameters()}
    last, n = [], 0
    for layer in range(module.num_layers):
        outputs = []
        for way in module.ways:
            name = f"l{layer}{way}"
            weights = [p[f"weight_{k}_{name}"] for k in ("ih", "hh")]
            weights += [p.get(f"bias_{k}_{name}", 0.0) for k in ("ih", "hh")]
            hs, cs, out = h[n], c[n], [None] * len(x)
            for t in range(len(x))[:: -1 if way else 1]:
                hs, cs = CELLS[type(module)](x[t], hs, cs, *weights)
                out[t] = hs
            outputs.append(np.array(out))
            last.append((hs, cs))
            n += 1
        x = np.concatenate(outputs, 2)
    return x, np.array([s for s, _ in last]), np.array([s for _, s in last])


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False, "num_layers": 2}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True}],
)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_outputs_follow_the_equations(kind, options, dtype, tolerance):
    manual_seed(0)
    module, rng = kind(3, 4, dtype=dtype, **options), np.random.default_rng(0)
    x = rng.standard_normal((5, 2, 3)).astype(dtype)
    h, c = rng.standard_normal((2, module.num_layers * len(module.ways), 2, 4)).astype(dtype)
    first = (Tensor(h), Tensor(c)) if kind is nn.LSTM else Tensor(h)
    swap = (1, 0, 2) if options.get("batch_first") else (0, 1, 2)
    for given, states in ((first, (h, c)), (None, (0 * h, 0 * c))):
        out, last = module(Tensor(x.transpose(swap)), given)
        want = by_steps(module, x, *states)
        np.testing.assert_allclose(out.data.transpose(swap), want[0], rtol=tolerance, atol=tolerance)
        last = last if kind is nn.LSTM else (last,)
        for mine, theirs in zip(last, want[1:], strict=False):
            assert mine.dtype == dtype
            np.testing.assert_allclose(mine.data, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_gradients_of_inputs_states_and_weights(kind):
    manual_seed(0)
    module = kind(2, 3, num_layers=2, bidirectional=True, dtype=np.float64)
    rng = np.random.default_rng(0)
    names = [name for name, _ in module.named_parameters()]

    def run(x, h, *weights):
        for name, w in zip(names, weights, strict=True):
            setattr(module, name, w)
        out, last = module(x, (h, h * 2) if kind is nn.LSTM else h)
        return (out, *last) if kind is nn.LSTM else (out, last)

    arrays = [rng.standard_normal(p.shape) for p in module.parameters()]
    check_vjp(run, rng.standard_normal((3, 2, 2)), rng.standard_normal((4, 2, 3)), *arrays, tolerance=1e-7)


@pytest.mark.parametrize("shape", [(0, 2, 3), (4, 0, 3)])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_no_times_and_no_samples(kind, shape):
    module, x = kind(3, 4), Tensor(np.zeros(shape, np.float32), True)
    out, last = module(x)
    assert out.shape == (*shape[:2], 4)
    (out.sum() + (last[0] if kind is nn.LSTM else last).sum()).backward()
    assert x.grad.shape == shape
    np.testing.assert_array_equal(module.weight_ih_l0.grad, 0)


def test_names_are_those_of_torch():
    module = nn.GRU(3, 4, num_layers=2, bidirectional=True)
    shapes = {name: p.shape for name, p in module.named_parameters()}
    assert shapes["weight_ih_l0"] == (12, 3)
    assert shapes["weight_ih_l1_reverse"] == (12, 8)
    assert shapes["bias_hh_l1"] == (12,)
    assert len(shapes) == 16
    bound = 4**-0.5
    assert all(abs(p.data).max() <= bound for p in module.parameters())
    with nn.deferred():
        manual_seed(1)
        late = nn.LSTM(3, 4)
    manual_seed(1)
    np.testing.assert_array_equal(nn.materialize(late).weight_hh_l0.data, nn.LSTM(3, 4).weight_hh_l0.data)


def test_dropout_between_layers_only_while_training():
    manual_seed(0)
    module, x = nn.LSTM(3, 4, num_layers=2, dropout=0.5), Tensor(np.ones((5, 2, 3), np.float32))
    assert not np.array_equal(module(x)[0].data, module(x)[0].data)
    module.eval()
    np.testing.assert_array_equal(module(x)[0].data, module(x)[0].data)


def test_it_learns_to_remember():
    manual_seed(0)
    rng = np.random.default_rng(0)
    module, head = nn.GRU(1, 8), nn.Linear(8, 1)
    parameters = [*module.parameters(), *head.parameters()]
    optimizer = optim.Adam(parameters, lr=0.02)
    for _ in range(150):
        x = rng.choice([-1.0, 1.0], (6, 32, 1)).astype(np.float32)
        loss = nn.functional.mse_loss(head(module(Tensor(x))[1][0]), x[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05  # the second of six inputs; guessing gives 1


def test_what_does_not_fit_is_said():
    module = nn.LSTM(3, 4)
    with pytest.raises(ValueError, match=r"LSTM: input.*\n.*\(5, 2, 2\)"):
        module(Tensor(np.zeros((5, 2, 2), np.float32)))
    state = Tensor(np.zeros((1, 3, 4), np.float32))
    with pytest.raises(ValueError, match=r"first state.*\n.*\(1, 3, 4\).*\n.*\(1, 2, 4\)"):
        module(Tensor(np.zeros((5, 2, 3), np.float32)), (state, state))
    with pytest.raises(ValueError, match="at least 1"):
        nn.GRU(3, 0)
