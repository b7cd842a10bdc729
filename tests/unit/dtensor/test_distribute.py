"""Distributing arrays and modules on thread ranks."""

import dtensor_suite as suite
import numpy as np
import pytest
from move_suite import INV, S0, S1, R

import hpcdist as hd
from hpcdist import nn
from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run, solo
from hpcdist.dtensor import DTensor, Partial, Shard, distribute_module, distribute_tensor
from hpcdist.dtensor.debug import CommDebugMode

SIZES = (1, 2, 3, 4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "check", [suite.check_distribute_all, suite.check_from_local_all, suite.check_from_local_gradients]
)
def test_on_threads(check, size):
    run(size, check)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_arguments_that_differ_are_refused_everywhere(size):
    run(size, suite.check_distribute_errors)


def test_case_b09():
    run(4, suite.check_b09)


def test_case_b11():
    run(4, suite.check_b11)


def test_run_check_finds_copies_that_differ():
    run(4, suite.check_run_check)


def test_heads_and_sections():
    """What a Shard cuts by units and by sections is sent so, too."""

    def main(comm):
        mesh = init_device_mesh(3, "tp", comm)
        whole = np.arange(48.0).reshape(12, 4)
        for shard in (Shard(0, unit=4), Shard(0, sections=(6, 6)), Shard(0, unit=(3, 2), sections=(6, 6))):
            for source in (0, None):
                suite.assert_is(distribute_tensor(whole, mesh, [shard], src_data_rank=source), whole)
            local = suite.placed(whole, mesh, [shard]).data
            assert DTensor.from_local(local, mesh, [shard]).shape == (12, 4)

    run(3, main)


def test_what_is_distributed_stays_or_is_refused():
    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        x = distribute_tensor(np.arange(8.0), mesh, [S0, S0], order=(1, 0))
        with suite.silent():
            assert distribute_tensor(x, mesh, [S0, S0], order=(1, 0)) is x
            for placements, order in (([S0, S0], None), ([S0, R], None)):
                with pytest.raises(ValueError, match=r"distributed already.*\n(.*\n)*.*redistribute"):
                    distribute_tensor(x, mesh, placements, order=order)

    run(4, main)


def test_a_mesh_is_that_of_the_block_or_needed():
    mesh = init_device_mesh(1, "tp", solo())
    for call in (
        lambda: distribute_tensor(np.ones(2)),
        lambda: DTensor.from_local(np.ones(2)),
        lambda: hd.dtensor.ones(2),
    ):
        with pytest.raises(ValueError, match="device_mesh"):
            call()
        with mesh:
            assert call().layout.placements == (INV,)
            assert call().device_mesh is mesh


def test_what_is_no_tensor_becomes_one():
    with init_device_mesh(1, "tp", solo()):
        assert distribute_tensor([[1.0, 2.0]]).dtype == np.float32
        assert DTensor.from_local(3).item() == 3
        with pytest.raises(TypeError, match="distributed tensor"):
            DTensor.from_local(hd.dtensor.ones(2))


def test_a_shape_that_is_given_is_held_to():
    def main(comm):
        mesh = init_device_mesh(2, "tp", comm)
        with suite.silent(), pytest.raises(ValueError, match=r"holds of \(5,\)"):
            DTensor.from_local(np.ones(1), mesh, [S0], shape=(5,))

    run(2, main)


# ---------------------------------------------------------------- modules
class Tied(nn.Module):
    """An embedding whose weight also makes the logits, and a norm; a buffer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(6, 4), nn.LayerNorm(4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", np.full(4, 2.0, np.float32))

    def forward(self, x):
        return self.head(self.norm(x) * self.scale)


def build(comm):
    """Return the model, with other values on each rank, and the mesh."""
    hd.manual_seed(comm.rank)
    return Tied(), init_device_mesh(comm.size, "tp", comm)


@pytest.mark.parametrize("size", SIZES)
def test_a_module_becomes_the_same_everywhere(size):
    def main(comm):
        model, mesh = build(comm)
        names = list(model.state_dict())
        expected = comm.broadcast_object({name: x.copy() for name, x in model.state_dict().items()})
        assert distribute_module(model, mesh) is model
        assert list(model.state_dict()) == names
        for name, x in (*model.named_parameters(), *model.named_buffers()):
            assert isinstance(x, DTensor)
            assert x.placements == (INV,)
            suite.assert_is(x, expected[name])
        assert model.head.weight is model.embedding.weight
        assert model.norm.weight.requires_grad
        assert not model.scale.requires_grad

    run(size, main)


def by_rows(_, module, mesh):
    if isinstance(module, nn.Embedding):
        module.weight = distribute_tensor(module.weight, mesh, [S0])


@pytest.mark.parametrize("size", SIZES)
def test_parts_as_asked_and_hooks(size):
    """Values and gradients are those of one process; a tied weight that is placed once is placed everywhere."""

    def enter(_, inputs, mesh):
        return DTensor.from_local(inputs[0], mesh, [INV])

    def leave(_, output, mesh):
        assert output.placements == (Shard(1),)
        assert output.device_mesh is mesh
        return output.full_tensor()

    def main(comm):
        hd.manual_seed(1)
        whole, x = Tied(), np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
        expected = whole(Tensor(x))
        expected.sum().backward()
        hd.manual_seed(1)
        model = distribute_module(Tied(), init_device_mesh(comm.size, "tp", comm), by_rows, enter, leave)
        assert model.head.weight is model.embedding.weight
        assert model.head.weight.placements == (S0,)
        y = model(Tensor(x))
        assert type(y) is Tensor
        np.testing.assert_allclose(y.data, expected.data, rtol=1e-5)
        y.sum().backward()
        for (name, p), q in zip(model.named_parameters(), whole.parameters(), strict=True):
            np.testing.assert_allclose(p.gradient().full_tensor().numpy(), q.grad, rtol=2e-5, err_msg=name)

    run(size, main)


def test_a_tied_weight_is_placed_in_one_way():
    def twice(name, module, mesh):
        if name in ("embedding", "head"):
            module.weight = distribute_tensor(module.weight, mesh, [S0 if name == "embedding" else S1])

    def main(comm):
        model, mesh = build(comm)
        with pytest.raises(ValueError, match=r"embedding\.weight, head\.weight are one parameter"):
            distribute_module(model, mesh, twice)

    run(2, main)


def test_a_module_is_distributed_once():
    def main(comm):
        model, mesh = build(comm)
        distribute_module(model.head, mesh)
        head = model.head.weight
        with CommDebugMode() as mode:
            distribute_module(model, mesh)  # one level up: what is there stays
        assert model.head.weight is head
        assert mode.get_comm_counts() == {"object": 4, "broadcast": 4}
        for module in (model, model.head):
            with pytest.raises(RuntimeError, match="distributed already"):
                distribute_module(module, mesh)

    run(2, main)


def test_values_that_cannot_be_sums_are_refused():
    with init_device_mesh(1, "tp", solo()), pytest.raises(ValueError, match="max"):
        hd.dtensor.zeros(3, placements=[Partial("max")])
