"""Leaves that are lent: their gradients are added up when the backward that reached them ends."""

import numpy as np
import pytest

from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import Invariant, Shard, distribute_tensor


@pytest.mark.parametrize("size", [2, 3])
def test_a_backward_inside_another_leaves_its_sums_alone(size):
    def main(comm):
        mesh = init_device_mesh((comm.size,), ("tp",), comm)
        x = distribute_tensor(Tensor(np.arange(6.0)), mesh, [Shard(0)])
        inner, outer = (distribute_tensor(Tensor(np.ones(()), True), mesh, [Invariant()]) for _ in range(2))
        middle = x * outer  # recorded before what its hook is on, so replayed after it
        late = middle * outer

        def nested(_):
            (x * inner).sum().backward()

        middle.register_hook(nested)
        late.sum().backward()
        return inner.grad, outer.grad

    for inner, outer in run(size, main):
        assert (inner, outer) == (15.0, 30.0)


def test_a_backward_that_failed_leaves_nothing_behind():
    def main(comm):
        mesh = init_device_mesh((comm.size,), ("tp",), comm)
        x = distribute_tensor(Tensor(np.arange(6.0)), mesh, [Shard(0)])
        w = distribute_tensor(Tensor(np.ones(()), True), mesh, [Invariant()])
        middle = x * w

        def fail(_):
            raise ZeroDivisionError

        remove = middle.register_hook(fail)
        y = (middle * w).sum()
        with pytest.raises(ZeroDivisionError):
            y.backward(retain_graph=True)
        remove()
        w.grad = None
        y.backward()
        return w.grad

    assert run(2, main) == [30.0, 30.0]
