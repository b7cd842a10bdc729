"""Plans: what they place, what they draw, what they refuse."""

import tracemalloc

import numpy as np
import pytest
import tp_suite
from tp_suite import SIZES, alone, on

from hpcdist import manual_seed, nn
from hpcdist.autograd import Tensor
from hpcdist.comm import DeviceMesh, DryCommunicator, init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import Invariant, Replicate, Shard
from hpcdist.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    explain_plan,
    parallelize_module,
)


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
        out = (Replicate(), Shard(0))[mesh.get_rank() % 2]
        with pytest.raises(ValueError, match="rank 1 and rank 0 differ"):  # what they would send would not fit together
            parallelize_module(tp_suite.net(), mesh, {"2": RowwiseParallel(output_layouts=out)})

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
    for sections in (0, True, -2, "2", (), (3, -1), (1.0, 2)):
        with pytest.raises(ValueError, match="sections"):
            ColwiseParallel(sections=sections)
    with pytest.raises(TypeError, match="dim"):
        SequenceParallel(sequence_dim="1")
    with pytest.raises(ValueError, match="do not pair"):
        PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=(Replicate(), None))
    with pytest.raises(ValueError, match="do not pair"):
        PrepareModuleInput(input_kwarg_layouts={"x": Shard(0)}, desired_input_kwarg_layouts={"y": Shard(0)})
    with pytest.raises(ValueError, match="do not pair"):
        PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=())
