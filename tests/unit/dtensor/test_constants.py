"""Layers that make constants of their own stand beside distributed inputs."""

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import Invariant, Shard, distribute_tensor
from hpcdist.nn import functional as F

X = np.random.default_rng(0).standard_normal((5, 4, 6))
CASES = {
    "layer_norm": lambda x: F.layer_norm(x, 6),
    "rms_norm": lambda x: F.rms_norm(x, (4, 6)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "new_full": lambda x: x + x.new_full((4, 6), 2.0) * x.new_ones(6) + x.new_zeros(()),
}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, size):
    def main(comm, placement):
        mesh = init_device_mesh((comm.size,), ("dp",), comm)
        x = distribute_tensor(Tensor(X, requires_grad=True), mesh, [placement])
        y = CASES[name](x)
        (y * y * y).sum().backward()
        return y.full_tensor().data, x.gradient().full_tensor().data

    x = Tensor(X, requires_grad=True)
    y = CASES[name](x)
    (y * y * y).sum().backward()
    for placement in (Shard(0), Invariant()):
        for value, gradient in run(size, main, placement):
            np.testing.assert_allclose(value, y.data, rtol=1e-12)
            np.testing.assert_allclose(gradient, x.grad, rtol=1e-9, atol=1e-12)


def test_states_that_begin_with_zeros():
    def main(comm):
        mesh = init_device_mesh((comm.size,), ("dp",), comm)
        x = distribute_tensor(Tensor(X.astype(np.float32)), mesh, [Invariant()])
        gru = nn.GRU(6, 3)
        for owner, key in [(owner, key) for _, owner, key in gru.named_slots()]:
            owner.slots[key] = distribute_tensor(owner.slots[key], mesh, [Invariant()], src_data_rank=None)
        return gru(x)[0].numpy()

    expected = run(1, main)[0]
    assert expected.any()
    for found in run(2, main):
        np.testing.assert_array_equal(found, expected)
