"""Case B37: the state of an optimizer through checkpoints, saved by a job on three ranks, loaded on two and on one."""

import subprocess
import sys
import textwrap

import pytest

JOB = '''
import sys
import numpy as np
import hpcdist as hd
from hpcdist import checkpoint, nn, optim, parallel, train


class Part(nn.Module):
    def __init__(self, n, trained=True):
        super().__init__()
        self.w = nn.Parameter(np.ones(n), requires_grad=trained)


class Model(nn.Module):
    """A and C of uneven sizes, F frozen; registered in any order."""

    def __init__(self, order):
        super().__init__()
        for name in order:
            setattr(self, name, Part({"A": 5, "C": 2, "F": 3}[name], name != "F"))

    def forward(self, **slopes):
        return sum((getattr(self, name).w * slope).sum() for name, slope in slopes.items())


def state(order, kind, comm):
    hd.manual_seed(0)
    model = Model(order)
    parallel.replicate(model, comm)
    pairs = dict(model.named_parameters())
    groups = [{"params": [(f"{n}.w", pairs[f"{n}.w"])]} for n in order]
    optimizer = getattr(optim, kind)(groups, lr=0.1)
    return train.TrainState(model, optimizer, optim.LambdaLR(optimizer, lambda step: 1.0), 10)


def step(state, **slopes):
    state.optimizer.zero_grad()
    state.model(**slopes).backward()
    state.optimizer.step()
    state.schedule.step()
    state.step += 1


def save(folder, kind, comm):
    """A is stepped three times, C never had a gradient; gradients are still there."""
    run = state("AFC", kind, comm)
    for slope in (1.0, 2.0, 3.0):
        step(run, A=slope)
    checkpoint.save(folder, run.state_dict(), step=run.step, comm=comm)
    kept = checkpoint.load(folder)
    names = {name for name in kept if name.startswith("optim/")}
    assert names == {"optim/exp_avg/A.w", "optim/exp_avg_sq/A.w", "optim/step/A.w"}
    np.testing.assert_allclose(kept["A.w"], 0.70768167706, atol=5e-12)
    np.testing.assert_allclose(kept["optim/exp_avg/A.w"], 0.561, rtol=1e-14)
    np.testing.assert_allclose(kept["optim/exp_avg_sq/A.w"], 0.013994001, rtol=1e-14)
    assert kept["optim/step/A.w"] == 3


def load(folder, kind, comm):
    for order in ("AFC", "CFA"):
        run = state(order, kind, comm)
        step(run, C=1.0)  # a state of C that the checkpoint does not have
        run.load_state_dict(checkpoint.load(folder))
        assert run.optimizer.state.keys() == {"A.w"}
        step(run, A=4.0, C=0.5)
        np.testing.assert_allclose(run.model.A.w.data, 0.61164065049, atol=5e-12)
        np.testing.assert_allclose(run.model.C.w.data, 0.9000000020, atol=5e-11)
        np.testing.assert_array_equal(run.model.F.w.data, 1.0)
        assert [run.optimizer.state[n]["step"] for n in ("A.w", "C.w")] == [4, 1]
        assert (run.step, run.schedule.last_epoch) == (4, 4)


comm = hd.init()
what, size = sys.argv[1:3]
assert comm.size == int(size)
try:
    {"save": save, "load": load}[what]("run", sys.argv[3], comm)
except hd.errors.CheckpointError as error:
    print("refused:", error)
print(what, "done on", comm.rank)
'''


@pytest.fixture
def launch(tmp_path):
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))

    def run(what, num_ranks, kind="Adam"):
        command = [
            sys.executable,
            "-m",
            "hpcdist",
            "launch",
            "-n",
            str(num_ranks),
            "job.py",
            what,
            str(num_ranks),
            kind,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        for rank in range(num_ranks):
            assert f"{what} done on {rank}" in done.stdout
        return done.stdout

    return run


def test_saved_on_three_ranks_loaded_on_two_and_one(launch):
    launch("save", 3)
    for num_ranks in (2, 1):
        assert "refused" not in launch("load", num_ranks)


def test_the_state_of_another_optimizer_is_refused(launch):
    launch("save", 1)
    said = launch("load", 2, kind="RMSprop")
    assert said.count("A.w has the state of another optimizer") == 2
