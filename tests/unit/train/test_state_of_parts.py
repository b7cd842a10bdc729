"""The state of a run whose parameters ranks share: whole arrays, which any number of ranks go on with."""

import h5py
import numpy as np
import pytest
import tp_suite

from hpcdist import checkpoint, manual_seed, nn, optim, train
from hpcdist.autograd import Tensor
from hpcdist.comm.local import run
from hpcdist.errors import CheckpointError
from hpcdist.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    full_state_dict,
    load_full_state_dict,
    parallelize_module,
)

PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}
KINDS = {
    optim.SGD: {"momentum": 0.9},
    optim.Adam: {"amsgrad": True},
    optim.AdamW: {},
    optim.RMSprop: {"momentum": 0.9, "centered": True},
    optim.Adagrad: {},
}


def build(comm, kind=optim.AdamW):
    """Return the state of a run; with ``comm=None`` in one process that knows nothing of ranks."""
    model = tp_suite.net()
    if comm is not None:
        parallelize_module(model, tp_suite.mesh_of(comm), PLAN)
    optimizer = kind(model.named_parameters(), lr=0.05, **KINDS[kind])
    return train.TrainState(model, optimizer, optim.LambdaLR(optimizer, lambda step: 0.9**step), 10)


def steps(state, count):
    for _ in range(count):
        x = np.random.default_rng(state.step).standard_normal((3, 4)).astype(np.float32)
        state.model.zero_grad()
        (state.model(Tensor(x)) ** 2).sum().backward()
        state.optimizer.step()
        state.schedule.step()
        state.step += 1
        state.samples_seen += 3


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.shape(found[name]) == np.shape(value), name
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_on_two_ranks_and_loaded_on_three_and_on_one(kind, tmp_path):
    def start(comm):
        state = build(comm, kind)
        steps(state, 2)
        checkpoint.save(tmp_path, state.state_dict(), step=2, comm=comm)

    def go_on(comm):
        state = build(comm, kind)
        for p in state.model.parameters():
            p.data[...] = 0
        state.load_state_dict(checkpoint.load(tmp_path, step=2))
        assert (state.step, state.samples_seen) == (2, 6)
        steps(state, 2)
        return state.state_dict()

    expected = build(None, kind)
    steps(expected, 4)
    run(2, start)
    for size in (1, 2, 3, 4):
        for found in run(size, go_on):
            assert_same(found, expected.state_dict())
    assert_same(go_on(None), expected.state_dict())
    with h5py.File(tmp_path / "step-00000002" / "index.h5") as file:
        assert file["0.weight"].shape == (5, 4)


def test_a_checkpoint_of_another_model_is_refused_before_anything_changes():
    def main(comm):
        state = build(comm)
        for name, expected in (("0.weight", r"0\.weight\n.*\(6, 4\)"), ("optim/exp_avg/2.weight", "19")):
            other = build(comm)
            steps(other, 1)
            wrong = other.state_dict()
            wrong[name] = np.ones((6, 4) if name == "0.weight" else 19, np.float32)
            with pytest.raises(CheckpointError, match=expected):
                state.load_state_dict(wrong)
        return full_state_dict(state.model)

    for after in run(3, main):
        assert_same(after, tp_suite.net().state_dict())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_whole_states_of_models(size):
    def main(comm):
        manual_seed(5)
        other = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
        manual_seed(6)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
        parallelize_module(model, tp_suite.mesh_of(comm), PLAN)
        load_full_state_dict(model, other.state_dict())
        assert_same(full_state_dict(model), other.state_dict())
        with pytest.raises(ValueError, match=r"load_full_state_dict: 0\.weight"):
            load_full_state_dict(model, {**other.state_dict(), "0.weight": np.ones((4, 4), np.float32)})
        if size > 1:
            with pytest.raises(ValueError, match="load_full_state_dict"):
                model.load_state_dict(other.state_dict())
        with pytest.raises(ValueError, match="names do not match"):
            load_full_state_dict(model, {})
        load_full_state_dict(model, {"0.bias": np.arange(5, dtype=np.float32)}, strict=False)
        return full_state_dict(model)["0.bias"].tolist()

    assert run(size, main) == [[0, 1, 2, 3, 4]] * size
