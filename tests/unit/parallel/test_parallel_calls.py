"""What goes into parallel modules and comes out of them; losses; tables of what is communicated."""

import copy

import numpy as np
import pytest
import tp_suite
from tp_suite import SIZES, on

from hpcdist import manual_seed, nn
from hpcdist.autograd import Tensor
from hpcdist.comm import DeviceMesh, DryCommunicator
from hpcdist.dtensor import DTensor, Invariant, Replicate, Shard
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    explain_plan,
    loss_parallel,
    parallelize_module,
)

both = pytest.mark.parametrize("sequence_parallel", [False, True])


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
        assert found == (expected if size > 1 else [call for call in expected if call[1] == "object"])

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
        assert mode.get_comm_bytes() == (
            {"all_gather": 2 * 5 * 8} if size > 1 else {}
        )  # two float64 numbers a row, and no logits
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


def test_modules_that_are_placed_in_other_ways_have_rows_of_their_own():
    mesh = DeviceMesh(range(2), "tp", DryCommunicator(2))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    table = explain_plan(tp_suite.net(), mesh, plan, positions=3)
    rows = {line.split()[0]: line for line in table.splitlines()}
    assert "weight Shard(0), bias Shard(0)" in rows["0"]
    assert "weight Shard(1), bias Invariant" in rows["2"]
    assert ("all_reduce" in rows["0"], "1 all_reduce 48 B" in rows["2"]) == (True, True)
    numbered = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    rows = [line.split()[:2] for line in explain_plan(numbered, mesh, {"0": ColwiseParallel()}).splitlines()]
    assert rows[-2:] == [["0", "1"], ["1", "2"]]


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
