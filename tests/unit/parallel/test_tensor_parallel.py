"""Tensor parallelism on threads, 1 to 4 ranks; plans and what they refuse."""

import copy
import tracemalloc

import numpy as np
import pytest
import tp_suite

from hpcdist import manual_seed, nn, parallel
from hpcdist.autograd import Tensor
from hpcdist.comm import DeviceMesh, DryCommunicator, init_device_mesh
from hpcdist.comm.local import run, solo
from hpcdist.dtensor import DTensor, Invariant, Partial, Replicate, Shard
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    explain_plan,
    loss_parallel,
    parallelize_module,
)

SIZES = (1, 2, 3, 4)
both = pytest.mark.parametrize("sequence_parallel", [False, True])


def on(size, main):
    """Run ``main(mesh)`` on thread ranks; return what each returned."""
    return run(size, lambda comm: main(tp_suite.mesh_of(comm)))


def alone():
    return tp_suite.mesh_of(solo())


# ---------------------------------------------------------------- against one process
@both
@pytest.mark.parametrize("size", [2, 3, 4])
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
        return model.weight.layout.ranges[0], model.bias.layout.ranges[0]

    found = on(size, main)
    heads = Shard(0).sizes(3, size)
    for count, (weight, bias) in zip(heads, found, strict=True):
        assert weight == bias
        assert sum(b - a for a, b in weight) == count * 8
        assert all(a % 4 == 0 for a, b in weight if b > a and a < 12)


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


# ---------------------------------------------------------------- one module, many places
def test_a_tied_parameter_becomes_one():
    def main(mesh):
        model = tied()
        parallelize_module(model, mesh, {"0": RowwiseParallel(), "1": ColwiseParallel()})
        assert model[0].weight is model[1].weight
        assert model[0].weight.placements == (Shard(0),)
        assert [n for n, _ in model.named_parameters()] == ["0.weight"]
        other = parallelize_module(tied(), mesh, {"1": ColwiseParallel()})
        assert other[0].weight is other[1].weight
        y = model(np.array([[1, 4]]))
        np.testing.assert_allclose(y.full_tensor().data, tied()(np.array([[1, 4]])).data, rtol=1e-5)

    on(3, main)


def tied():
    manual_seed(2)
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7, bias=False))
    model[1].weight = model[0].weight
    return model


def test_a_tied_parameter_in_two_ways_is_an_error_that_names_both():
    def main(mesh):
        model = tied()
        before = model[0].weight
        with pytest.raises(ValueError, match=r"0\.weight and 1\.weight are one parameter"):
            parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": ColwiseParallel()})
        assert model[0].weight is before
        assert not model.around

    on(2, main)


def test_parts_first_then_the_whole():
    def main(mesh):
        model = tp_suite.net()
        parallelize_module(model[0], mesh, ColwiseParallel())
        first = model[0].weight
        parallelize_module(model, mesh, {"2": RowwiseParallel()})
        assert model[0].weight is first
        x = np.ones((2, 4), np.float32)
        np.testing.assert_allclose(model(x).full_tensor().data, tp_suite.net()(Tensor(x)).data, rtol=1e-5)

    on(3, main)


def test_what_no_style_places_is_the_same_everywhere_with_the_values_of_one_rank():
    def main(mesh):
        manual_seed(mesh.get_rank())
        model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
        first, own = mesh.get_group().broadcast(model[0].weight.data, 1), model[0].weight.data
        parallelize_module(model, mesh, {}, src_data_rank=1)
        assert all(p.placements == (Invariant(),) for p in model.parameters())
        np.testing.assert_array_equal(model[0].weight.data, first)
        mine = nn.Linear(2, 2)
        mine.weight.data = own
        parallelize_module(mine, mesh, {"": ColwiseParallel()}, src_data_rank=None)
        np.testing.assert_array_equal(mine.weight.data, own[mesh.get_rank() : mesh.get_rank() + 1])

    on(2, main)


# ---------------------------------------------------------------- without storage
@pytest.mark.parametrize("size", SIZES)
def test_deferred_parameters_are_drawn_part_by_part(size):
    def main(mesh):
        whole = tp_suite.gpt("swiglu-rms-learned")
        with nn.deferred():
            model = tp_suite.gpt("swiglu-rms-learned")
        parallelize_module(model, mesh, tp_suite.gpt_plan(model))
        for name, p in model.named_parameters():
            np.testing.assert_array_equal(p.full_tensor().data, whole.state_dict()[name])

    on(size, main)


def test_no_rank_has_more_than_its_part():
    with nn.deferred():
        model = nn.Linear(1024, 4096, bias=False)
    mesh = DeviceMesh(range(64), "tp", DryCommunicator(64))
    tracemalloc.start()
    parallelize_module(model, mesh, ColwiseParallel())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert model.weight.local.shape == (64, 1024)
    assert peak < 4096 * 1024 * 4 / 2  # draws need many times the memory of their result, a part at a time


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ({"blocks.*.atn.qkv": ColwiseParallel()}, ValueError, r"blocks\.\*\.attn\.qkv"),
        ({"wet": RowwiseParallel()}, ValueError, "wte"),
        ({"blocks.*": {"mlp.fc3": ColwiseParallel()}}, ValueError, r"in 'blocks\.0'.*\n.*\n.*mlp\.fc1"),
        ({"ln_f": ColwiseParallel()}, TypeError, "LayerNorm"),
        ({"blocks.*.attn": RowwiseParallel()}, TypeError, "MultiheadAttention"),
        ({"blocks.*.attn.qkv": ColwiseParallel(heads=5)}, ValueError, "multiple of 5 heads"),
        ({"blocks.*.mlp.fc1": ColwiseParallel(sections=(3, 4))}, ValueError, "adds up to the 48"),
        ({"wte": "rowwise"}, TypeError, "'wte'"),
        ({0: RowwiseParallel()}, TypeError, "a key"),
        (None, TypeError, "None"),
        ({"wte": (RowwiseParallel(), ColwiseParallel())}, ValueError, r"wte\.weight: two styles"),
    ],
)
def test_plans_that_do_not_fit_change_nothing(plan, error, message):
    model = tp_suite.gpt("gelu-layer-rotary")
    before = model.state_dict()
    with pytest.raises(error, match=message):
        parallelize_module(model, alone(), plan)
    assert all(p is before[name] for name, p in model.state_dict().items())
    assert not any(m.around for m in model.modules())


def test_a_name_that_fits_nothing_may_be_a_warning():
    model = tp_suite.net()
    with pytest.warns(UserWarning, match="'nowhere'"):
        parallelize_module(model, alone(), {"nowhere": ColwiseParallel(), "0": ColwiseParallel()}, strict=False)
    assert model[0].weight.placements == (Shard(0),)


def test_the_same_error_on_every_rank():
    def main(mesh):
        model = tp_suite.net() if mesh.get_rank() != 1 else nn.Sequential(nn.Linear(4, 5))
        with pytest.raises(ValueError, match="no module fits"):
            parallelize_module(model, mesh, {"2": RowwiseParallel()})
        with pytest.raises(ValueError, match="rank 1 and rank 0 differ"):
            parallelize_module(model, mesh, {"0": ColwiseParallel()})
        with pytest.raises(ValueError, match="rank 1 and rank 0 differ"):
            parallelize_module(tp_suite.net(), mesh, {"0": (ColwiseParallel, RowwiseParallel)[mesh.get_rank() % 2]()})

    on(3, main)


def test_twice_is_refused():
    model = parallelize_module(tp_suite.net(), alone(), {"0": ColwiseParallel()})
    with pytest.raises(RuntimeError, match="parallelized already"):
        parallelize_module(model, alone(), {"0": ColwiseParallel()})
    with pytest.raises(RuntimeError, match=r"weight: it is distributed already"):
        parallelize_module(model[0], alone(), ColwiseParallel())


def test_meshes_of_several_axes_are_sliced_first():
    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        with pytest.raises(ValueError, match=r"mesh\['tp'\]"):
            parallelize_module(tp_suite.net(), mesh, {"0": ColwiseParallel()})
        with pytest.raises(ValueError, match=r"mesh\['tp'\]"):
            explain_plan(tp_suite.net(), mesh, {"0": ColwiseParallel()})
        with mesh["tp"]:
            model = parallelize_module(tp_suite.net(), None, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        assert model[0].weight.local.shape == (3 - comm.rank % 2, 4)

    run(4, main)
    with pytest.raises(ValueError, match="device_mesh"):
        parallelize_module(tp_suite.net(), None, {})


def test_styles_that_make_no_sense():
    with pytest.raises(TypeError, match="input_layouts"):
        ColwiseParallel(input_layouts="whole")
    with pytest.raises(ValueError, match="heads"):
        RowwiseParallel(heads=0)
    with pytest.raises(ValueError, match="do not pair"):
        PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=(Replicate(), None))
    with pytest.raises(ValueError, match="do not pair"):
        PrepareModuleInput(input_kwarg_layouts={"x": Shard(0)}, desired_input_kwarg_layouts={"y": Shard(0)})
    with pytest.raises(ValueError, match="do not pair"):
        PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=())


# ---------------------------------------------------------------- inputs and outputs
class Three(nn.Module):
    """Three layers that use one input."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, scale=None):
        y = self.q(x) + self.k(x) * self.v(x)
        return y if scale is None else y * scale


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("come", [Replicate(), Shard(0)])
def test_an_input_is_prepared_once_however_many_layers_use_it(size, come):
    def main(mesh):
        manual_seed(0)
        model = Three()
        reference = copy.deepcopy(model)
        prepare = PrepareModuleInput(input_layouts=come, desired_input_layouts=Replicate())
        parallelize_module(model, mesh, {"": prepare, "?": ColwiseParallel()})
        x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
        tp_suite.check_same(model, reference, x, inputs=lambda t: given(t, mesh, come))
        x = given(Tensor(x), mesh, come).data
        with CommDebugMode(model) as mode:
            model(Tensor(x, True)).sum().backward()
        found = [(r.phase, r.verb) for r in mode.records]
        expected = [("backward", "all_reduce")]
        if isinstance(come, Shard):  # a plain part: its size is told to the others
            expected = [("forward", "object"), ("forward", "all_gather"), ("backward", "reduce_scatter")]
        assert found == expected

    on(size, main)


def given(x, mesh, layout):
    """Return the plain input of a rank whose gradient becomes that of the whole."""
    if not isinstance(layout, Shard):
        return x
    return DTensor.from_local(x, mesh, [Invariant()]).redistribute(placements=[layout]).to_local()


@pytest.mark.parametrize("size", SIZES)
def test_outputs_and_inputs_by_name(size):
    def main(mesh):
        manual_seed(0)
        model = Three()
        reference = copy.deepcopy(model)
        style = PrepareModuleInputOutput(
            input_layouts=(Replicate(),),
            desired_input_layouts=(Invariant(),),
            input_kwarg_layouts={"scale": Replicate()},
            desired_input_kwarg_layouts={"scale": Shard(-1)},
            output_layouts=Shard(-1),
            desired_output_layouts=Replicate(),
            use_local_output=True,
        )
        parallelize_module(model, mesh, {"?": ColwiseParallel(), "": style})
        x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
        scale = np.arange(15, dtype=np.float32).reshape(5, 3)
        y = model(Tensor(x), scale=Tensor(scale))
        assert type(y) is Tensor
        expected = reference(Tensor(x), Tensor(scale))
        np.testing.assert_allclose(y.data, expected.data, rtol=1e-5, atol=1e-6)
        (y * y).sum().backward()
        (expected * expected).sum().backward()
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            np.testing.assert_allclose(p.gradient().full_tensor().data, q.grad, rtol=1e-3, atol=1e-4)
        with pytest.raises(ValueError, match="number of values"):
            model(Tensor(x), Tensor(scale))

    on(size, main)


def test_a_module_may_get_and_give_plain_parts():
    class Local(nn.Module):
        def forward(self, x):
            assert type(x) is Tensor
            return x * 2.0

    def main(mesh):
        style = PrepareModuleInputOutput(
            input_layouts=None,
            desired_input_layouts=None,
            output_layouts=Shard(0),
            desired_output_layouts=Replicate(),
        )
        model = parallelize_module(nn.Sequential(Local()), mesh, {"0": style})
        y = model(Tensor(np.full((1, 2), 1.0 + mesh.get_rank())))
        assert y.placements == (Replicate(),)
        return y.full_tensor().data[:, 0].tolist()

    assert on(3, main) == [[2, 4, 6]] * 3


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("use_local_output", [False, True])
def test_sequence_parallel(size, use_local_output):
    def main(mesh):
        manual_seed(0)
        model, reference = nn.LayerNorm(3), nn.LayerNorm(3)
        parallelize_module(model, mesh, SequenceParallel(use_local_output=use_local_output))
        x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
        start, stop = Shard(0).ranges(5, mesh.size(), mesh.get_local_rank())[0]
        whole = DTensor.from_local(Tensor(x), mesh, [Invariant()])
        expected = reference(Tensor(x))
        (expected * expected).sum().backward()
        for given in (Tensor(x[:, start:stop]), whole):
            y = model(given)
            local = y if use_local_output else y.to_local()
            np.testing.assert_allclose(local.data, expected.data[:, start:stop], rtol=1e-5, atol=1e-6)
            assert isinstance(y, Tensor) is use_local_output
        (y * y).sum().backward()
        np.testing.assert_allclose(model.weight.grad, reference.weight.grad, rtol=1e-4, atol=1e-5)
        with pytest.raises(ValueError, match="an input of LayerNorm"):
            model([1.0])

    on(size, main)


def test_styles_of_ones_own():
    class Doubled(ParallelStyle):
        def placements(self, module):
            return {"weight": Shard(1)} if isinstance(module, nn.Linear) else {}

        def wrap(self, module, mesh):
            assert module.weight.device_mesh == mesh
            return lambda call: lambda x: call(x) * 2.0

    def main(mesh):
        model = Doubled().apply(tp_suite.net()[0], mesh)
        x = np.ones((2, 4), np.float32)
        np.testing.assert_allclose(
            model(Tensor(x)).full_tensor().data, 2 * tp_suite.net()[0](Tensor(x)).data, rtol=1e-5
        )

    on(2, main)


# ---------------------------------------------------------------- losses
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_losses_of_logits_that_are_cut(size, label_smoothing):
    def main(mesh):
        manual_seed(0)
        model = nn.Linear(4, 7)
        reference = copy.deepcopy(model)
        parallelize_module(model, mesh, ColwiseParallel())
        x = Tensor(np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32))
        targets = np.array([0, 6, -100, 3, 3])
        with loss_parallel(), CommDebugMode() as mode:
            loss = nn.functional.cross_entropy(model(x), targets, label_smoothing=label_smoothing)
            loss.backward()
        expected = nn.functional.cross_entropy(reference(x), targets, label_smoothing=label_smoothing)
        expected.backward()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert mode.get_comm_bytes() == {"all_gather": 2 * 5 * 8}  # two float64 numbers a row, and no logits
        np.testing.assert_allclose(
            model.weight.gradient().full_tensor().data, reference.weight.grad, rtol=1e-4, atol=1e-6
        )
        with pytest.raises(TypeError, match="implicit_replication"):
            nn.functional.cross_entropy(model(x), targets)

    on(size, main)


# ---------------------------------------------------------------- tables
def test_a_plan_is_explained():
    model = tp_suite.gpt("gelu-layer-rotary")
    before = [m.around[:] for m in model.modules()]
    mesh = DeviceMesh(range(3), "tp", DryCommunicator(3))
    table = explain_plan(model, mesh, tp_suite.gpt_plan(model), positions=14)
    rows = {line.split("  ")[0]: line for line in table.splitlines()}
    assert rows["wte"].count("Shard(0)") == 1
    width, positions, blocks = 12, 14, 2
    part = -(-positions * width * 4 // 3) * blocks
    assert f"2 all_gather {part:,} B" in rows["blocks.*.attn.qkv"]
    assert f"2 reduce_scatter {positions * width * 4 * blocks:,} B" in rows["blocks.*.attn.proj"]
    assert "Shard(0, unit=12)" in rows["blocks.*.attn.qkv"]
    assert "all_reduce" in rows["(end of backward)"]
    assert [m.around for m in model.modules()] == before
    assert all(type(p) is Tensor for p in model.parameters())
    with pytest.raises(ValueError, match="wte"):
        explain_plan(model, mesh, {"wet": RowwiseParallel()})


@both
def test_what_follows_from_styles_is_what_is_called(sequence_parallel):
    """In blocks, both tables tell of the same collectives and bytes; they are those of a real step."""
    model = tp_suite.gpt("swiglu-rms-learned", seq=8)
    plan, inputs = tp_suite.gpt_plan(model, sequence_parallel), tp_suite.batch(model.config, 0)
    mesh = DeviceMesh(range(2), "tp", DryCommunicator(2))
    told = [
        [line.split()[-8:] for line in explain_plan(model, mesh, plan, **how).splitlines() if "blocks" in line]
        for how in ({"positions": 16}, {"inputs": inputs})
    ]
    assert [[w for w in line if "_" in w] for line in told[0]] == [[w for w in line if "_" in w] for line in told[1]]


def test_all_names_are_public():
    assert {"ColwiseParallel", "RowwiseParallel", "loss_parallel", "clip_grad_norm_"} <= set(parallel.__all__)
    assert Partial() not in (Replicate(), Invariant())
