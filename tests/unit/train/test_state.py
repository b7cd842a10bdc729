"""The state of a run through checkpoint files: what optimizers remember goes by names, in the precision it has."""

import ml_dtypes
import numpy as np
import pytest

from hpcdist import checkpoint, nn, optim, train
from hpcdist.autograd import manual_seed
from hpcdist.errors import CheckpointError


class Model(nn.Module):
    """A matrix, a vector that is seldom used, and a parameter without elements."""

    def __init__(self, dtype):
        super().__init__()
        rng = np.random.default_rng(0)
        self.matrix = nn.Parameter(rng.standard_normal((3, 2)).astype(dtype))
        self.seldom = nn.Parameter(np.ones(4, dtype))
        self.none = nn.Parameter(np.zeros((0, 5), dtype))


def build(kind, dtype, **options):
    manual_seed(0)
    model = Model(dtype)
    optimizer = kind(model.named_parameters(), **options)
    return train.TrainState(model, optimizer, optim.LambdaLR(optimizer, lambda step: 0.5**step), 10)


def step(state, *names):
    rng = np.random.default_rng(state.step)
    state.model.zero_grad()
    for name, p in state.model.named_parameters():
        if name in names:
            p.grad = rng.standard_normal(p.shape[::-1]).T.astype(p.dtype)

    def closure():
        return sum((p.data.astype(float) * p.grad).sum() for p in state.model.parameters() if p.grad is not None)

    state.optimizer.step(closure)
    state.schedule.step()
    state.step += 1


KINDS = {
    optim.SGD: {"momentum": 0.9},
    optim.Adam: {"amsgrad": True},
    optim.AdamW: {},
    optim.RMSprop: {"momentum": 0.9, "centered": True},
    optim.Adagrad: {},
    optim.LAMB: {},
    optim.LARS: {},
    optim.LBFGS: {"max_iter": 3},
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_bit_by_bit(kind, dtype, tmp_path):
    options = {"lr": 2**-5, **KINDS[kind]}
    first, second = build(kind, dtype, **options), build(kind, dtype, **options)
    for _ in range(3):
        step(first, "matrix", "none")
    checkpoint.save(tmp_path, first.state_dict(), step=first.step)
    second.load_state_dict(checkpoint.load(tmp_path))
    assert second.optimizer.param_groups[0]["lr"] == 2**-8
    for run in (first, second):
        for _ in range(3):
            step(run, "matrix", "seldom")
    assert first.state_dict().keys() == second.state_dict().keys()
    for name, value in first.state_dict().items():
        np.testing.assert_array_equal(second.state_dict()[name], value, err_msg=name)
        assert getattr(value, "dtype", None) == getattr(second.state_dict()[name], "dtype", None)


def test_going_back_to_before_a_parameter_had_a_gradient(tmp_path):
    run = build(optim.Adam, np.float32)
    step(run, "matrix")
    checkpoint.save(tmp_path, run.state_dict(), step=1)
    step(run, "matrix", "seldom")
    run.load_state_dict(checkpoint.load(tmp_path))
    assert run.optimizer.state.keys() == {"matrix"}
    assert run.step == 1


def test_the_state_of_another_optimizer_is_refused(tmp_path):
    run = build(optim.SGD, np.float32, momentum=0.9)
    step(run, "matrix")
    checkpoint.save(tmp_path, run.state_dict(), step=1)
    other = build(optim.AdamW, np.float32)
    with pytest.raises(CheckpointError, match="matrix has the state of another optimizer"):
        other.load_state_dict(checkpoint.load(tmp_path))


def test_a_renamed_parameter_is_named(tmp_path):
    run = build(optim.AdamW, np.float32)
    checkpoint.save(tmp_path, run.state_dict(), step=0)
    other = build(optim.AdamW, np.float32)
    other.model.often = other.model.seldom
    del other.model.seldom
    with pytest.raises(CheckpointError, match="nothing named often"):
        other.load_state_dict(checkpoint.load(tmp_path))
