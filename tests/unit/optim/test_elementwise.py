"""Optimizers that go through parameters in blocks: the same step as on whole arrays, and no large temporaries."""

import tracemalloc

import numpy as np
import pytest

from hpcdist import optim
from hpcdist.autograd import Tensor
from hpcdist.optim import elementwise

KINDS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, weight_decay=0.01),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.2),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.1),
}


def trained(kind, size, dtype, steps=3):
    random = np.random.default_rng(0)
    parameter = Tensor(random.standard_normal(size).astype(dtype), requires_grad=True)
    optimizer = KINDS[kind]([("p", parameter)])
    for _ in range(steps):
        parameter.grad = random.standard_normal(size).astype(dtype)
        optimizer.step()
    return parameter.data, optimizer.state_dict()["state"].get("p", {})


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_do_not_show(kind, dtype, monkeypatch):
    """A length that is no multiple of the block, and none at all."""
    whole, kept = trained(kind, 1001, dtype)
    monkeypatch.setattr(elementwise, "BLOCK", 100)
    in_blocks, kept_in_blocks = trained(kind, 1001, dtype)
    np.testing.assert_array_equal(in_blocks, whole)
    assert kept.keys() == kept_in_blocks.keys()
    for key, value in kept.items():
        np.testing.assert_array_equal(kept_in_blocks[key], value)
    assert trained(kind, 0, dtype)[0].shape == (0,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_steady_step_allocates_next_to_nothing(kind):
    parameter = Tensor(np.ones(1 << 20, "f4"), requires_grad=True)
    parameter.grad = np.ones(1 << 20, "f4")
    optimizer = KINDS[kind]([("p", parameter)])
    optimizer.step()
    tracemalloc.start()
    optimizer.step()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20  # of 4 MiB a parameter
