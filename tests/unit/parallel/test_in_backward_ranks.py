"""Updates that backward makes where gradients are reduced over ranks, against steps, bit for bit."""

import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor, manual_seed
from hpcdist.comm import local
from hpcdist.parallel import fully_shard, replicate

LAYERS, STEPS = 3, 4


def build(comm, strategy):
    manual_seed(5)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(LAYERS)))
    if strategy == "replicate":
        replicate(model, comm, units=list(model), bucket_bytes=1)
    else:
        for layer in model:
            fully_shard(layer, mesh=comm)
        fully_shard(model, mesh=comm)
    return model


def train(comm, strategy, in_backward):
    model = build(comm, strategy)
    if in_backward:
        optim.apply_optimizer_in_backward(optim.AdamW, model.named_parameters(), {"lr": 0.1})
    else:
        optimizer = optim.AdamW(model.named_parameters(), lr=0.1)
    for step in range(STEPS):
        x = np.random.default_rng((step, comm.rank)).standard_normal((3, 6)).astype(np.float32)
        (model(Tensor(x)) ** 2).mean().backward()
        if in_backward:
            assert [p for p in model.parameters() if p.grad is not None] == []
        else:
            optimizer.step()
            optimizer.zero_grad()
    return [np.array(p.data) for p in model.parameters()]


def main(comm, strategy):
    for found, expected in zip(train(comm, strategy, True), train(comm, strategy, False), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy", ["replicate", "fully_shard"])
def test_equals_steps(strategy, size):
    local.run(size, main, strategy)
