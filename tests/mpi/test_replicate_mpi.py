"""Replicated training over MPI, with and without the progress thread."""

import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor, manual_seed
from hpcdist.parallel import replicate


def build():
    manual_seed(11)
    return nn.Sequential(*(nn.Linear(12, 12, dtype=np.float64) for _ in range(4)))


def batch(step, rank):
    return Tensor(np.random.default_rng((step, rank)).standard_normal((5 + rank, 12)))


def train(model, batches_of, steps=4):
    optimizer = optim.AdamW(model.named_parameters(), lr=0.01)
    for step in range(steps):
        for x in batches_of(step):
            (model(x) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_weights_equal_those_of_one_process_that_sees_all(world, bucket_bytes):
    expected = train(build(), lambda step: [batch(step, r) for r in range(world.size)])
    model = build()
    replica = replicate(model, world, units=list(model), bucket_bytes=bucket_bytes)
    replica.set_gradient_divide_factor(1)
    found = train(model, lambda step: [batch(step, world.rank)])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert replica.wait_s >= 0


def test_a_rank_without_the_unit_takes_part(world):
    model = nn.Linear(3, 2)
    other = nn.Linear(3, 2)
    both = nn.Sequential(model, other)
    replica = replicate(both, world, units=[model, other], bucket_bytes=1)
    replica.set_gradient_divide_factor(1)
    x = Tensor(np.ones((1, 3), np.float32))
    both.forward = (lambda t: model(t) + other(t)) if world.rank == 0 else (lambda t: model(t))
    both(x).sum().backward()
    np.testing.assert_array_equal(model.bias.grad, np.full(2, world.size))
    np.testing.assert_array_equal(other.bias.grad, [1, 1])


def test_different_models_are_the_same_error_on_every_rank(world):
    if world.size == 1:
        replicate(nn.Linear(3, 2), world)
        return
    with pytest.raises(ValueError, match="differ"):
        replicate(nn.Linear(3, 2 + (world.rank == world.size - 1)), world)
    world.barrier()
