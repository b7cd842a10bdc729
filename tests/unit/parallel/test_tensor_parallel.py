"""Tensor-parallel models and layers against a single process, on 1 to 4 thread ranks."""

import copy

import numpy as np
import pytest
import tp_suite
from tp_suite import SIZES, on

from hpcdist import manual_seed, nn
from hpcdist.autograd import Tensor
from hpcdist.comm.local import run
from hpcdist.dtensor import DTensor, Invariant, Replicate, Shard
from hpcdist.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

both = pytest.mark.parametrize("sequence_parallel", [False, True])


# ---------------------------------------------------------------- against one process
@both
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", tp_suite.GPTS)
def test_losses_are_those_of_one_process(size, name, sequence_parallel):
    run(size, tp_suite.check_losses, name, sequence_parallel)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["gelu-layer-rotary", "swiglu-rms-learned"])
def test_losses_with_data_parallelism(size, name):
    run(size, tp_suite.check_with_data_parallel, name)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", tp_suite.GPTS)
def test_samples(size, name):
    run(size, tp_suite.check_samples, name)


def test_copies_are_independent():
    def main(mesh):
        model = tp_suite.gpt("gelu-layer-rotary")
        parallelize_module(model, mesh, tp_suite.gpt_plan(model))
        twin, inputs = copy.deepcopy(model), tp_suite.batch(model.config, 0)
        loss = model(*inputs)
        loss.backward()
        assert twin.wte.weight.grad is None
        model.wte.weight.data[...] = 0
        assert twin(*inputs).item() == loss.item()

    on(2, main)


def test_gradients_add_up_and_frozen_parameters_have_none():
    def main(mesh):
        model, reference = (tp_suite.gpt("gelu-layer-rotary") for _ in range(2))
        for m in (model, reference):
            m.ln_f.requires_grad_(False)
            m.blocks[0].attn.requires_grad_(False)
        parallelize_module(model, mesh, tp_suite.gpt_plan(model))
        for seed in (0, 1):
            model(*tp_suite.batch(model.config, seed)).backward()
            reference(*tp_suite.batch(model.config, seed)).backward()
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            if q.grad is None:
                assert p.grad is None
                continue
            np.testing.assert_allclose(p.gradient().full_tensor().data, q.grad, rtol=1e-3, atol=1e-6)
        assert model.ln_f.weight.grad is None

    on(3, main)


@both
@pytest.mark.parametrize("name", ["gelu-layer-rotary", "swiglu-rms-learned"])
def test_collectives_of_a_block(name, sequence_parallel):
    run(3, tp_suite.check_counts, name, sequence_parallel)


def test_what_a_step_sends_elsewhere():
    """The embedding's sum, the gather before the loss, the loss's own, and what ends backward."""
    found = run(2, tp_suite.check_counts, "gelu-layer-rotary", True)[0]["elsewhere", "backward"]
    assert found.count("all_reduce") == 1  # gradients of norms and biases, once
    assert sorted(set(found)) == ["all_gather", "all_reduce", "reduce_scatter"]


@pytest.mark.parametrize("size", SIZES)
def test_features_that_ranks_do_not_divide(size):
    run(size, tp_suite.check_uneven)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("style", [ColwiseParallel, RowwiseParallel])
def test_every_style_of_a_linear(size, style):
    def main(mesh):
        for out in (None, Replicate(), Invariant(), Shard(1)):
            for use_local_output in (False, True):
                if use_local_output and not (out is None or isinstance(out, (Replicate, Invariant))):
                    continue
                manual_seed(1)
                model, reference = nn.Linear(5, 7), None
                reference = copy.deepcopy(model)
                plan = style(input_layouts=Replicate(), output_layouts=out, use_local_output=use_local_output)
                parallelize_module(model, mesh, plan)
                x = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
                y = model(Tensor(x))
                assert isinstance(y, Tensor) is use_local_output
                if use_local_output and style is ColwiseParallel and out is None:
                    assert y.shape == (2, 3, model.weight.local.shape[0])
                    continue
                whole = y if use_local_output else y.full_tensor()
                np.testing.assert_allclose(whole.data, reference(Tensor(x)).data, rtol=1e-5, atol=1e-6)
                tp_suite.check_same(_plain(model) if use_local_output else model, reference, x)
                reference.zero_grad()

    on(size, main)


class _plain:  # noqa: N801 (called as a function)
    """A model that returns plain tensors, as check_same expects distributed ones."""

    def __init__(self, model):
        self.model = model
        self.named_parameters = model.named_parameters

    def __call__(self, x):
        y = self.model(x)
        mesh = self.model.weight.device_mesh
        return DTensor.from_local(y, mesh, [Invariant()])


@pytest.mark.parametrize("size", SIZES)
def test_plain_inputs_that_are_parts(size):
    """A rowwise layer knows the extent of the whole from its weight; a colwise one gathers sizes."""

    def main(mesh):
        manual_seed(1)
        rowwise = nn.Linear(5, 3)
        reference = copy.deepcopy(rowwise)
        parallelize_module(rowwise, mesh, RowwiseParallel())
        x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
        start, stop = Shard(0).ranges(5, mesh.size(), mesh.get_local_rank())[0]
        np.testing.assert_allclose(
            rowwise(Tensor(x[:, start:stop])).full_tensor().data, reference(Tensor(x)).data, rtol=1e-5, atol=1e-6
        )
        colwise = copy.deepcopy(reference)
        parallelize_module(colwise, mesh, ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()))
        start, stop = Shard(0).ranges(2, mesh.size(), mesh.get_local_rank())[0]
        np.testing.assert_allclose(
            colwise(x=Tensor(x[start:stop])).full_tensor().data, reference(Tensor(x)).data, rtol=1e-5, atol=1e-6
        )

    on(size, main)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("style", [ColwiseParallel(), RowwiseParallel(), RowwiseParallel(output_layouts=Shard(1))])
def test_embeddings(size, style):
    def main(mesh):
        manual_seed(1)
        model = nn.Embedding(7, 5)
        reference = copy.deepcopy(model)
        parallelize_module(model, mesh, style)
        tokens = np.random.default_rng(0).integers(0, 7, (2, 3))
        y, expected = model(tokens), reference(tokens)
        (y * y).sum().backward()
        (expected * expected).sum().backward()
        np.testing.assert_array_equal(y.full_tensor().data, expected.data)
        np.testing.assert_allclose(model.weight.gradient().full_tensor().data, reference.weight.grad, rtol=1e-6)

    on(size, main)


@pytest.mark.parametrize("size", SIZES)
def test_sections_and_heads(size):
    """Fused [q | k | v] of 3 heads, keys and values of 2 features a head: every section at whole heads."""

    def main(mesh):
        model = nn.Linear(3, 12 + 6 + 6)
        parallelize_module(model, mesh, ColwiseParallel(sections=(12, 6, 6), heads=3))
        return model.weight.layout.runs[0], model.bias.layout.runs[0]

    found = on(size, main)
    heads = Shard(0).sizes(3, size)
    for count, (weight, bias) in zip(heads, found, strict=True):
        assert weight == bias
        assert sum(b - a for a, b in weight) == count * 8
        assert all(a % 4 == 0 for a, _ in weight if a < 12)


def sequence(rng, width):
    return rng.standard_normal((2, 5, width)).astype(np.float32)


@both
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
@pytest.mark.parametrize("hidden", [1, 2, 3, 5, 8])
def test_feed_forward_of_any_width(size, activation, hidden, sequence_parallel):
    """Also where there are more ranks than features."""
    cut = Shard(1) if sequence_parallel else None
    plan = {
        "fc1": ColwiseParallel(input_layouts=cut, sections=2 if activation == "swiglu" else None),
        "fc2": RowwiseParallel(output_layouts=cut),
    }

    def main(mesh):
        manual_seed(0)
        model = nn.MLP(3, hidden, activation)
        reference = copy.deepcopy(model)
        parallelize_module(model, mesh, plan)
        x = sequence(np.random.default_rng(0), 3)
        tp_suite.check_same(model, reference, x, inputs=lambda t: laid(t, mesh, cut or Invariant()))

    on(size, main)


def laid(x, mesh, placement):
    return DTensor.from_local(x, mesh, [Invariant()]).redistribute(placements=[placement])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rotary_base", [None, 100.0])
@pytest.mark.parametrize(("heads", "kv"), [(1, 1), (3, 3), (4, 2), (5, 5), (6, 2), (4, 1)])
def test_attention_of_any_number_of_heads(size, heads, kv, rotary_base):
    """Also where there are more ranks than heads, or than pairs of keys and values."""

    def main(mesh):
        manual_seed(0)
        model = nn.MultiheadAttention(4 * heads, heads, num_kv_heads=kv, rotary_base=rotary_base)
        reference = copy.deepcopy(model)
        parallelize_module(model, mesh, {"qkv": ColwiseParallel(heads=kv), "proj": RowwiseParallel(heads=kv)})
        tp_suite.check_same(model, reference, sequence(np.random.default_rng(0), 4 * heads))

    on(size, main)
