"""The main job: the same losses on any number of ranks, by any way of starting, from any data, through kills."""

import importlib.util
import os
import re
import signal
import sys

import gpt_job
import h5py
import numpy as np
import numpy_gpt
import pytest
from gpt_job import FLAVOURS, TINY, assert_same_losses, losses, metrics, run, start

from hpcdist import checkpoint, train
from hpcdist.comm import local

WAYS = ("launch 1", "mpirun 2", "launch 2", "launch 3", "launch 4")


# ---------------------------------------------------------------- the numbers
@pytest.mark.parametrize(
    ("way", "flavour"), [*((way, "plain") for way in WAYS), ("launch 2", "modern"), ("launch 3", "modern")]
)
def test_losses_are_those_of_one_process(ran, way, flavour):
    assert_same_losses(ran(way, flavour)[1], ran("python", flavour)[1])


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_it_learns(ran, flavour):
    training, validation = losses(ran("python", flavour)[1])
    assert abs(training[0] - np.log(256)) < 0.1
    assert training[-1] < 4
    assert validation[1] < validation[0] < 4.5


def numpy_loss(out, step, sequences, **kind):
    config = numpy_gpt.Config(num_layers=1, num_heads=2, width=32, **{"mlp": "gelu", **kind})
    sequences = np.asarray(sequences, np.int64)
    return numpy_gpt.loss_and_grads(gpt_job.weights_of(out, step), sequences[:, :-1], sequences[:, 1:], config)[0]


def sequences_of(text, held_out=False):
    """Return what the job's samples should be: (n, seq + 1), each beginning where the one before ends."""
    stream = np.frombuffer(text.read_bytes(), np.uint8)
    cut = len(stream) - int(0.05 * len(stream))
    part = stream[cut:] if held_out else stream[:cut]
    windows = np.lib.stride_tricks.sliding_window_view(part, gpt_job.SEQ + 1)
    return windows[:: gpt_job.SEQ]


def test_loss_is_the_mean_over_the_samples_whose_turn_it_is(ran, text):
    """Step after step, across the end of an epoch, with the weights of checkpoints, in plain NumPy."""
    _, out = ran("launch 3")
    samples = sequences_of(text)
    words = [np.random.Philox(key=np.array([0, epoch], np.uint64)).random_raw(len(samples)) for epoch in range(2)]
    order = np.concatenate([np.argsort(w, kind="stable") for w in words])
    assert len(samples) == 261
    for step in (5, 10, 15):
        turn = order[step * gpt_job.GLOBAL_BATCH :][: gpt_job.GLOBAL_BATCH]
        expected = numpy_loss(out, step, samples[turn])
        assert abs(losses(out)[0][step] - expected) < 1e-5


@pytest.mark.parametrize(
    ("flavour", "kind"), [("plain", {}), ("modern", {"mlp": "swiglu", "norm": "rms", "positions": "rotary"})]
)
def test_val_loss_is_the_loss_on_what_was_held_out(ran, text, flavour, kind):
    _, out = ran("launch 3", flavour)
    expected = [numpy_loss(out, step, sequences_of(text, held_out=True), **kind) for step in (10, 20)]
    np.testing.assert_allclose(losses(out)[1], expected, rtol=0, atol=1e-5)


# ---------------------------------------------------------------- going on
def paused(folder, way, step, *arguments):
    """Start a run that pauses after ``step``; return it and the ids of its ranks."""
    started = start(folder, way, str(step), "pause", *arguments, job=gpt_job.AT_A_STEP)
    num_ranks = int(way.split()[1])
    gpt_job.wait_for(lambda: len(list(folder.glob("paused-*"))) == num_ranks, f"{way} did not come to step {step}")
    marks = list(folder.glob("paused-*"))
    pids = [int(mark.name.split("-")[1]) for mark in marks]
    for mark in marks:
        mark.unlink()
    return started, pids


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_killed_and_resumed_on_other_ranks_is_as_if_nothing_had_happened(ran, text, tmp_path, flavour):
    """2 ranks until the launcher is killed, 3 until a rank is killed, then 1: every step once, the same losses."""
    options = (*TINY, "--data", str(text), "--out", "out", *FLAVOURS[flavour])
    started, pids = paused(tmp_path, "launch 2", 8, *options)
    started.kill()
    started.wait()
    gpt_job.wait_for(lambda: all(map(gpt_job.is_gone, pids)), "ranks outlive their launcher")
    assert [r["step"] for r in metrics(tmp_path / "out")] == list(range(1, 9))

    started, pids = paused(tmp_path, "launch 3", 13, *options, "--resume")
    os.kill(pids[1], signal.SIGKILL)
    assert started.wait(gpt_job.LIMIT_S) == 137
    assert checkpoint.steps(tmp_path / "out") == [5, 10]
    assert [r["step"] for r in metrics(tmp_path / "out")] == list(range(1, 14))

    said = run(tmp_path, "python", *options, variables={"HPCDIST_RESTART_COUNT": "1"})
    assert said.code == 0, said.said
    assert "from step 10 to step 20" in said.out
    assert_same_losses(tmp_path / "out", ran("python", flavour)[1])
    for step in (5, 10, 15, 20):
        checkpoint.verify(tmp_path / "out", step)


def test_a_run_that_was_complete_takes_no_step(ran, text):
    first, out = ran("mpirun 2")
    before = gpt_job.snapshot(out)
    again = run(out.parent, "python", *TINY, "--data", str(text), "--out", "out", "--resume")
    assert again.code == 0, again.said
    assert re.findall(r"val_loss (\S+)", again.out) == re.findall(r"val_loss (\S+)", first.out)[-1:]
    after = gpt_job.snapshot(out)
    assert {p for p in before if after[p][1] != before[p][1]} <= {out / "loss.svg"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--seed", "3"), "seed"),
        (("--width", "64"), "another model"),
        (("--seq", "16"), "num_samples"),
        (("--heads", "4"), "heads"),
    ],
    ids=["seed", "width", "seq", "heads"],
)
def test_resume_with_what_does_not_fit_is_an_error(ran, text, change, message):
    _, out = ran("mpirun 2")
    before = gpt_job.snapshot(out)
    again = run(out.parent, "python", *TINY, "--data", str(text), "--out", "out", "--resume", *change)
    assert again.code == 1
    assert message in again.err
    assert "Traceback" not in again.err
    assert gpt_job.snapshot(out).keys() == before.keys()


# ---------------------------------------------------------------- other data, other ways in
def test_data_of_every_kind_gives_the_same_losses(text, tmp_path):
    data = text.read_bytes()
    (tmp_path / "folder/b").mkdir(parents=True)
    (tmp_path / "folder/a.txt").write_bytes(data[:5000])
    (tmp_path / "folder/b/c.txt").write_bytes(data[5000:])
    with h5py.File(tmp_path / "ids.h5", "w") as file:
        file["tokens"] = np.frombuffer(data, np.uint8).astype(np.int32)
        file["tokens"].attrs["vocab_size"] = 256
        file["other/name"] = np.frombuffer(data, np.uint8)
    kinds = {"text": text, "folder": "folder", "hdf5": "ids.h5", "named": "ids.h5:other/name"}
    said, found = {}, {}
    for name, source in kinds.items():
        said[name] = run(tmp_path, "python", *TINY, "--data", str(source), "--out", name, "--steps", "2")
        assert said[name].code == 0, said[name].said
        found[name] = [r["loss"] for r in metrics(tmp_path / name)]
    assert found["text"] == found["folder"] == found["hdf5"]
    assert "2 files" in said["folder"].out
    largest = max(data) + 1  # without the attribute
    assert f"tokens of {largest}" in said["named"].out
    assert abs(found["named"][0] - np.log(largest)) < 0.1
    sample = said["named"].out.split("--- sample\n")[1].split("\n---")[0]
    assert max(map(int, sample.split())) < largest


POISON = """
import atexit, os, sys

class Poison:
    def find_spec(self, name, path=None, target=None):
        if name == "mpi4py.MPI":
            os.abort()
        if name == "cupy":
            raise RuntimeError("this CuPy is broken")

sys.meta_path.insert(0, Poison())
atexit.register(lambda: print("mpi4py:", "mpi4py" in sys.modules))
"""


def test_one_process_needs_no_mpi(ran, text, tmp_path):
    """Case B54: also where MPI would abort the process."""
    (tmp_path / "sitecustomize.py").write_text(POISON)
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    options = (*TINY, "--data", str(text), "--out", "out")
    said = run(tmp_path, "python", *options, variables={"PYTHONPATH": search})
    assert said.code == 0, said.said
    assert said.out.endswith("mpi4py: False\n")
    assert losses(tmp_path / "out") == losses(ran("python")[1])


def imported():
    spec = importlib.util.spec_from_file_location("gpt_as_a_library", gpt_job.JOB)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_it_can_be_imported_and_called(ran, text, tmp_path, capsys):
    gpt = imported()
    words = [*TINY, "--data", str(text), "--out", str(tmp_path / "out")]
    options = train.parse_options(gpt.Options, local.solo(), words)
    assert (options.width, options.steps, options.resume) == (32, 20, False)
    first, second = local.run(2, lambda comm: gpt.job(options, comm))
    assert (first.state.step, first.state.samples_seen) == (20, 320)
    assert first.val_loss == second.val_loss
    for mine, theirs in zip(first.state.model.parameters(), second.state.model.parameters(), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    assert capsys.readouterr().out.count("--- sample") == 1
    assert_same_losses(tmp_path / "out", ran("python")[1])
