"""Parallel models beside what else there is: parts parallelized apart, averages, scalers, batch norms, plain inputs."""

import copy

import numpy as np
import pytest
import tp_suite
from tp_suite import SIZES, on

from hpcdist import manual_seed, nn, optim
from hpcdist.autograd import Tensor
from hpcdist.comm.local import run
from hpcdist.dtensor import Invariant, Replicate, Shard, distribute_module, distribute_tensor
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    ShardedGradScaler,
    parallelize_module,
)

PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


# ---------------------------------------------------------------- tied parameters, shared modules
def tied():
    manual_seed(2)
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7, bias=False))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize("deferred", [False, True])
def test_a_tied_parameter_stays_one_if_its_modules_are_parallelized_apart(deferred):
    def main(mesh):
        if deferred:
            with nn.deferred():
                model = tied()
        else:
            model = tied()
        parallelize_module(model[0], mesh, RowwiseParallel())
        parallelize_module(model[1], mesh, ColwiseParallel())
        assert model[0].weight is model[1].weight
        tokens, reference = np.array([[1, 4]]), tied()
        (model(tokens) ** 2).sum().backward()
        (reference(tokens) ** 2).sum().backward()
        found = model[0].weight.gradient().full_tensor().data
        np.testing.assert_allclose(found, reference[0].weight.grad, rtol=1e-4, atol=1e-5)

    on(3, main)


def test_a_tied_parameter_stays_one_if_a_part_comes_before_the_whole():
    def main(mesh):
        model = tied()
        parallelize_module(model[0], mesh, RowwiseParallel())
        parallelize_module(model, mesh, {})
        assert model[0].weight is model[1].weight
        assert model[1].weight.placements == (Shard(0),)

    on(2, main)


def test_a_tied_parameter_is_placed_in_one_way_in_calls_apart_too():
    def main(mesh):
        model = tied()
        parallelize_module(model[0], mesh, ColwiseParallel())
        before = model[1].weight
        with pytest.raises(ValueError, match="weight: a tied parameter is distributed already"):
            parallelize_module(model[1], mesh, ColwiseParallel())
        assert model[1].weight is before

    on(2, main)


class Doubled(ParallelStyle):
    def wrap(self, module, mesh):
        return lambda call: lambda x: call(x) * 2.0


class Shared(nn.Module):
    """A layer that is there under two names."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a

    def forward(self, x):
        return self.b(self.a(x))


@pytest.mark.parametrize("names", ["?", "[ab]"])
def test_a_shared_module_is_wrapped_once(names):
    manual_seed(0)
    model = Shared()
    expected = 4 * model.a.weight.data @ model.a.weight.data @ X.T
    model.a.bias.data[...] = 0
    parallelize_module(model, tp_suite.alone(), {names: Doubled()})
    np.testing.assert_allclose(model(Tensor(X)).full_tensor().data, expected.T, rtol=1e-4, atol=1e-5)


def test_a_star_is_a_name_and_not_the_module_itself():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    parallelize_module(model, tp_suite.alone(), {"*": ColwiseParallel()})
    assert all(p.placements == (Shard(0),) for p in model.parameters())


# ---------------------------------------------------------------- inputs that are not there
class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x, mask=None):
        return self.norm(x if mask is None else x * mask)


@pytest.mark.parametrize(
    "style",
    [
        PrepareModuleInput(input_layouts=(Replicate(),) * 2, desired_input_layouts=(Replicate(),) * 2),
        SequenceParallel(sequence_dim=0),
    ],
)
def test_none_stays_none(style):
    model = parallelize_module(Optional(), tp_suite.alone(), style)
    np.testing.assert_array_equal(model(Tensor(X), None).full_tensor().data, Optional()(Tensor(X)).data)


# ---------------------------------------------------------------- batch norms
def with_batch_norm():
    manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


@pytest.mark.parametrize("size", SIZES)
def test_batch_norm_between_whole_features(size):
    def main(mesh):
        plan = {"0": ColwiseParallel(output_layouts=Replicate()), "2": RowwiseParallel(input_layouts=Replicate())}
        model, reference = parallelize_module(with_batch_norm(), mesh, plan), with_batch_norm()
        tp_suite.check_same(model, reference, X)
        np.testing.assert_allclose(model[1].running_var.data, reference[1].running_var.data, rtol=1e-5)
        assert list(model.state_dict()) == list(reference.state_dict())

    on(size, main)


def test_batch_norm_of_cut_features_wants_statistics_that_are_cut():
    def main(mesh):
        model = parallelize_module(with_batch_norm(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        with pytest.raises(ValueError, match="batch_norm: what this rank holds of running statistics"):
            model(Tensor(X))

        def cut(name, module, mesh):
            if isinstance(module, nn.BatchNorm1d):
                for table in (module.slots, module.buffers):
                    table.update({k: distribute_tensor(t, mesh, [Shard(0)]) for k, t in table.items() if t.ndim})

        model, reference = with_batch_norm(), with_batch_norm()
        distribute_module(model[1], mesh, cut)
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        tp_suite.check_same(model, reference, X)
        model.eval(), reference.eval()
        np.testing.assert_allclose(model(Tensor(X)).full_tensor().data, reference(Tensor(X)).data, rtol=1e-4, atol=1e-5)

    on(2, main)


# ---------------------------------------------------------------- averages and scalers
@pytest.mark.parametrize("size", SIZES)
def test_averages_of_parallel_models_are_parallel_models(size):
    def main(mesh):
        model, reference = parallelize_module(tp_suite.net(), mesh, PLAN), tp_suite.net()
        for m in (model, reference):
            m(Tensor(X)).sum().backward()
        averages = [optim.AveragedModel(m, optim.get_ema_avg_fn(0.5)) for m in (model, reference)]
        for factor in (1, 2, 3):
            for m, average in zip((model, reference), averages, strict=True):
                for p in m.parameters():
                    p.data *= factor
                average.update_parameters(m)
        for p, q in zip(*(average.parameters() for average in averages), strict=True):
            assert p.grad is None
            np.testing.assert_allclose(p.full_tensor().data, q.data, rtol=1e-6)
        mine, theirs = (average(Tensor(X)) for average in averages)
        np.testing.assert_allclose(mine.full_tensor().data, theirs.data, rtol=1e-4, atol=1e-5)

    on(size, main)


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_of_all():
    def main(mesh):
        model = parallelize_module(tp_suite.net(), mesh, PLAN)
        sgd, scaler = optim.SGD(model.named_parameters(), lr=0.1), ShardedGradScaler(init_scale=4.0, process_group=mesh)
        before = copy.deepcopy(model.state_dict())
        scaler.scale(model(Tensor(X)).sum()).backward()
        if mesh.get_local_rank() == 1:
            model[0].weight.grad[0, 0] = np.inf
        with pytest.raises(TypeError, match="ShardedGradScaler"):
            optim.GradScaler().step(sgd)
        with CommDebugMode() as mode:
            scaler.unscale_(sgd)
            scaler.step(sgd)
        assert mode.get_comm_counts() == {"all_reduce": 1}
        scaler.update()
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(value, before[name])
        return scaler.get_scale()

    assert on(3, main) == [2.0] * 3


def test_parts_keep_their_layouts_when_the_whole_is_parallelized():

    def main(mesh):
        model = parallelize_module(tp_suite.net()[0], mesh, ColwiseParallel())
        whole = nn.Sequential(model, nn.Linear(5, 2))
        parallelize_module(whole, mesh, {"1": RowwiseParallel()})
        return [p.placements[0] for p in whole.parameters()]

    assert on(2, main)[0] == [Shard(0), Shard(0), Shard(1), Invariant()]


# ---------------------------------------------------------------- check mode
def checked(size, main):
    """Run ``main(mesh)`` on thread ranks in check mode."""

    def start(comm):
        comm.check = True
        return main(tp_suite.mesh_of(comm))

    return run(size, start)


def test_inputs_that_differ_between_ranks_are_found_in_check_mode():
    def main(mesh):
        model = parallelize_module(tp_suite.net(), mesh, PLAN)
        with pytest.raises(ValueError, match=r"counts as the same on all ranks.*\n.*other values"):
            model(Tensor(X + (mesh.get_rank() == 1)))
        with pytest.raises(ValueError, match="counts as the same on all ranks"):
            model(Tensor(X[: 1 + mesh.get_rank()]))
        np.testing.assert_allclose(model(Tensor(X)).full_tensor().data, tp_suite.net()(Tensor(X)).data, rtol=1e-5)

    checked(3, main)


def test_tokens_and_targets_that_differ_between_ranks_are_found_in_check_mode():
    checked(3, lambda mesh: tp_suite.check_inputs_compared(mesh.comm))


def test_parts_that_differ_are_no_mistake_in_check_mode():
    def main(mesh):
        model = parallelize_module(nn.LayerNorm(4), mesh, SequenceParallel(sequence_dim=0))
        return model(Tensor(X[: 2 - mesh.get_rank()])).shape

    assert checked(2, main) == [(3, 4)] * 2
