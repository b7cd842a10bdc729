"""Steps of parallel models that are not forward, backward, update: failures, micro-batches, several forwards."""

import numpy as np
import pytest
import tp_suite
from tp_suite import on

from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.parallel import parallelize_module, replicate


def pair(mesh):
    """Return a parallel model and the same one in a single process."""
    model, reference = (tp_suite.gpt("gelu-layer-rotary") for _ in range(2))
    return parallelize_module(model, mesh, tp_suite.gpt_plan(model)), reference


def assert_same_gradients(model, reference):
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(p.gradient().full_tensor().data, q.grad, rtol=1e-3, atol=1e-6)


def check_gradients(model, reference, inputs):
    for m in (model, reference):
        m(*inputs).backward()
    assert_same_gradients(model, reference)


def fail(_):
    raise KeyError("in the middle")


@pytest.mark.parametrize("name", ["blocks.0.attn.qkv.weight", "blocks.1.ln1.weight", "ln_f.weight", "wte.weight"])
def test_a_backward_that_fails_on_all_ranks_leaves_nothing_behind(name):
    def main(mesh):
        model, reference = pair(mesh)
        inputs = tp_suite.batch(model.config, 0)
        remove = dict(model.named_parameters())[name].register_hook(fail)
        with pytest.raises(KeyError):
            model(*inputs).backward()
        remove()
        model.zero_grad()
        check_gradients(model, reference, inputs)

    on(2, main)


def test_a_forward_that_fails_on_all_ranks_leaves_nothing_behind():
    def main(mesh):
        model, reference = pair(mesh)
        inputs = tp_suite.batch(model.config, 0)
        model.blocks[1].mlp.pre.append(fail)
        with pytest.raises(KeyError):
            model(*inputs)
        model.blocks[1].mlp.pre.clear()
        check_gradients(model, reference, inputs)

    on(2, main)


def test_two_forwards_before_one_backward():
    def main(mesh):
        model, reference = pair(mesh)
        for m in (model, reference):
            (m(*tp_suite.batch(m.config, 0)) + m(*tp_suite.batch(m.config, 1)) / 2.0).backward()
        assert_same_gradients(model, reference)

    on(3, main)


def test_micro_batches_with_data_parallelism():
    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        model, reference = pair(mesh["tp"])
        replica, row = replicate(model, mesh["dp"]), mesh.get_local_rank("dp")
        batches = [tp_suite.batch(model.config, seed) for seed in range(4)]
        with replica.no_sync():
            model(*batches[row]).backward(0.5)
        model(*batches[2 + row]).backward(0.5)
        for inputs in batches:
            reference(*inputs).backward(0.25)
        assert_same_gradients(model, reference)

    run(4, main)
