"""CPUOffloadPolicy with a stand-in for a GPU: what rests is on the host, what is computed with is on the card."""

import sys

import device_stand_in
import numpy as np
import pytest

from hpcdist import nn
from hpcdist.array import is_device
from hpcdist.autograd import Tensor, apply, define
from hpcdist.comm.local import run
from hpcdist.optim import SGD
from hpcdist.parallel import CPUOffloadPolicy, OffloadPolicy, fully_shard

VALUES = np.arange(12.0).reshape(4, 3)


@pytest.fixture
def cupy(monkeypatch):
    module = device_stand_in.cupy(device_stand_in.Card())
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def _look(w, seen):
    seen.append(w.get() if is_device(w) else w.copy())
    return np.zeros(()), (w,)


def _look_vjp(into, _, saved, seen):
    gradient = saved[0].copy()
    gradient[...] = VALUES
    into[0].give(gradient)


LOOK = define("look_at_card", _look, _look_vjp)
"""An operation on the card: a number, and the gradient 0, 1, 2, ..."""


class Held(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.weight = nn.Parameter(values)

    def forward(self):
        assert is_device(self.weight.data)
        seen = []
        return apply(LOOK, self.weight, seen=seen), seen[0]


@pytest.mark.parametrize("offloads", [False, True])
def test_what_rests_is_on_the_host(cupy, offloads):
    def main(comm):
        policy = CPUOffloadPolicy() if offloads else OffloadPolicy()
        model = fully_shard(Held(cupy.asarray(VALUES)), mesh=comm, offload_policy=policy)
        assert is_device(model.weight.data) is not offloads
        loss, seen = model()
        np.testing.assert_array_equal(seen, VALUES)
        loss.backward()
        assert is_device(model.weight.grad) is not offloads
        if offloads:
            np.testing.assert_array_equal(model.weight.grad, VALUES)
            SGD(model.named_parameters(), lr=0.5).step()
            np.testing.assert_array_equal(model.weight.data, VALUES / 2)
            np.testing.assert_array_equal(model()[1], VALUES / 2)
        else:
            np.testing.assert_array_equal(model.weight.grad.get(), VALUES)

    run(1, main)


def test_a_module_on_the_host_computes_there():
    def main(comm):
        model = fully_shard(nn.Linear(3, 2), mesh=comm, offload_policy=CPUOffloadPolicy(pin_memory=False))
        model(Tensor(np.ones((4, 3), np.float32))).sum().backward()
        assert not any(is_device(a) for p in model.parameters() for a in (p.data, p.grad))

    run(2, main)
