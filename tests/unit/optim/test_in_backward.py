"""Updates of single parameters, and those that backward makes, against steps, bit for bit."""

import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor, manual_seed
from hpcdist.optim.lr_scheduler import StepLR
from hpcdist.parallel import apply_activation_checkpointing

KINDS = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad, optim.LAMB, optim.LARS]
STEPS = 4


class Net(nn.Module):
    """Layers, of which two share a weight and one is not always used."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.layers[3].weight = self.layers[1].weight

    def forward(self, x, num_layers):
        for layer in [*self.layers][-num_layers:]:
            x = nn.functional.gelu(layer(x))
        return (x**2).mean()


def build(recomputed=False):
    manual_seed(5)
    model = Net()
    if recomputed:
        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, nn.Linear))
    return model


def loss(model, step):
    x = np.random.default_rng(step).standard_normal((3, 6)).astype(np.float32)
    return model(Tensor(x), 3 if step == 1 else 4)


def by_steps(kind, gamma=0.5, **options):
    model = build()
    optimizer = kind(model.named_parameters(), lr=0.1, **options)
    schedule = StepLR(optimizer, 2, gamma=gamma)
    for step in range(STEPS):
        loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.state_dict(), optimizer.state_dict()


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_backward_updates_as_steps_do(kind, recomputed):
    weights, state = by_steps(kind)
    model = build(recomputed)
    optimizer = optim.apply_optimizer_in_backward(kind, model.named_parameters(), {"lr": 0.1})
    schedule = StepLR(optimizer, 2, gamma=0.5)
    for step in range(STEPS):
        loss(model, step).backward()
        assert [p for p in model.parameters() if p.grad is not None] == []
        schedule.step()
    found = {name.replace("inner.", ""): value for name, value in model.state_dict().items()}
    same(found, weights)
    for name, entries in state["state"].items():
        same(optimizer.state[name], entries)


def test_gradients_are_let_go_of_one_by_one():
    model, alive = build(), []
    parameters = list(model.parameters())
    for p in parameters:
        p.register_post_accumulate_grad_hook(lambda _: alive.append(sum(q.grad is not None for q in parameters)))
    optim.apply_optimizer_in_backward(optim.AdamW, model.named_parameters())
    loss(model, 0).backward()
    assert alive == [1] * len(parameters)


def test_groups_have_options_of_their_own():
    slow, fast = (Tensor(np.ones(2), True) for _ in range(2))
    groups = [{"params": [slow], "lr": 0.5}, {"params": [fast]}]
    optim.apply_optimizer_in_backward(optim.SGD, groups, {"lr": 2.0})
    (slow * 1.0 + fast * 1.0).sum().backward()
    np.testing.assert_array_equal([slow.data, fast.data], [[0.5, 0.5], [-1, -1]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_given_gradient_updates_as_a_step_does(kind, parts):
    rng = np.random.default_rng(0)
    pairs = [[Tensor(np.ones((2, 3), np.float32), True) for _ in range(2)] for _ in range(2)]
    one, other = (kind(pair, lr=0.1) for pair in pairs)
    for _ in range(STEPS):
        gradients = rng.standard_normal((2, parts, 2, 3)).astype(np.float32)
        gradients = gradients if parts > 1 else gradients[:, 0]
        one.grad_scale = other.grad_scale = 0.5
        for i, gradient in enumerate(gradients):
            pairs[0][i].grad = gradient
            one.grad_scale = 0.5
            other.step_param(pairs[1][i], gradient)
            assert pairs[1][i].grad is None
        one.step()
        assert other.grad_scale == 0.5
    for p, q in zip(*pairs, strict=True):
        np.testing.assert_array_equal(p.data, q.data)
    same(other.state["1"], one.state["1"])


def test_what_step_param_refuses():
    p = Tensor(np.ones(2), True)
    p.grad = kept = np.full(2, 7.0)
    optimizer = optim.SGD([p])
    with pytest.raises(ValueError, match=r"step_param: param"):
        optimizer.step_param(Tensor(np.ones(2), True), np.ones(2))
    for gradient, error in ((np.ones(3), ValueError), ([1.0, 1.0], TypeError)):
        with pytest.raises(error):
            optimizer.step_param(p, gradient)
        assert p.grad is kept
    np.testing.assert_array_equal(p.data, 1)
    with pytest.raises(TypeError, match="LBFGS updates all"):
        optim.LBFGS([p]).step_param(p, np.ones(2))


def test_what_cannot_be_updated_in_backward():
    p, frozen = Tensor(np.ones(2), True), Tensor(np.ones(2))
    with pytest.raises(ValueError, match="LBFGS looks at all"):
        optim.apply_optimizer_in_backward(optim.LBFGS, [p])
    with pytest.raises(RuntimeError, match="'1' is frozen"):
        optim.apply_optimizer_in_backward(optim.SGD, [p, frozen])
    assert list(p.done_hooks) == []
    optim.apply_optimizer_in_backward(optim.SGD, [p])
    with pytest.raises(RuntimeError, match="'0' is updated in backward already"):
        optim.apply_optimizer_in_backward(optim.SGD, [p])
    assert len(p.done_hooks) == 1
