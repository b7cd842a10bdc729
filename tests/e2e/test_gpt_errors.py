"""The main job and bad input: one clear message, exit code 1, within seconds, nothing broken that was there before."""

import os
import subprocess

import gpt_job
import h5py
import numpy as np
import pytest
from gpt_job import TINY, metrics, run

from hpcdist import checkpoint

WAYS = ("python", "launch 2")
WITHIN_S = 20

WRONG = {
    "unknown flag": (("--stps", "3"), ("unrecognized arguments: --stps 3", "--help")),
    "no number": (("--steps", "many"), ("--steps", "'many'", "--help")),
    "missing file": (("--data", "nowhere.txt"), ("training data", "nowhere.txt: No such file")),
    "empty file": (("--data", "empty.txt"), ("training data: empty file", "empty.txt", "at least one byte")),
    "empty folder": (("--data", "empty"), ("training data: empty folder", "empty", "at least one byte")),
    "no tokens": (("--data", "other.h5"), ("no such dataset", "'tokens' in other.h5", "one of ids", "other.h5:NAME")),
    "float tokens": (("--data", "other.h5:x"), ("not token ids", "float64", "integers")),
    "long sequence": (("--seq", "9000"), ("longer than the data", "8360 tokens", "at least 9001", "shorter sequence")),
    "width": (("--width", "33"), ("width", "33", "a multiple of the 2 heads")),
    "strategy": (("--strategy", "magic"), ("--strategy", "magic", "replicate")),
    "activation": (("--mlp", "magic"), ("activation", "magic", "swiglu")),
    "dropout": (("--dropout", "1.5"), ("Dropout: p", "1.5", "0 to 1")),
    "seed": (("--seed", "-1"), ("seed", "-1", "2^64")),
    "steps": (("--steps", "0"), ("--steps", "0", "at least 1")),
    "output below a file": (("--out", "text.txt/out"), ("output folder", "text.txt/out: Not a directory", "--out")),
    "nothing to resume": (("--resume",), ("no run to go on with in out", "--out")),
}


@pytest.fixture
def place(tmp_path, text):
    """Return a folder with good and bad input."""
    (tmp_path / "text.txt").write_bytes(text.read_bytes())
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "empty").mkdir()
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["ids"] = np.arange(100)
        file["x"] = np.arange(100.0)
    return tmp_path


def assert_told(done, *parts):
    """See that a run ended in time with a message of ``parts``, told once, and nothing of our insides."""
    assert done.code == 1, done.said
    assert done.seconds < WITHIN_S
    assert done.err.count("gpt.py: ") == 1, done.err
    message = done.err[done.err.index("gpt.py: ") :]
    for part in parts:
        assert part in message, message
    assert "Traceback" not in done.said
    assert ".py, line" not in done.said


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(place, case, way):
    arguments, parts = WRONG[case]
    assert_told(run(place, way, *TINY, "--data", "text.txt", "--out", "out", *arguments), *parts)
    assert not (place / "out").exists()


def test_too_few_micro_batches_names_the_largest_that_works(place):
    options = (*TINY, "--data", "text.txt", "--out", "out", "--steps", "1", "--micro-batch")
    done = run(place, "launch 3", *options, "8")
    assert_told(done, "fewer than data-parallel ranks", "2: global batch 16", "at least 3", "micro-batch to 7 or less")
    assert not (place / "out").exists()
    assert run(place, "launch 3", *options, "7").code == 0


@pytest.mark.parametrize("way", ["mpirun 2", "launch 2"])
def test_the_message_comes_last_or_only_mpirun_comes_after_it(place, way):
    done = run(place, way, *TINY, "--data", "nowhere.txt")
    assert_told(done, "nowhere.txt")
    after = done.err[done.err.index("gpt.py: ") :].splitlines()[3:]
    assert after == [] if way == "launch 2" else "prterun" in "".join(after) or not after


# ---------------------------------------------------------------- trouble on the way
@pytest.mark.parametrize("way", WAYS)
def test_divergence_ends_the_run(place, way):
    done = run(place, way, *TINY, "--data", "text.txt", "--out", "out", "--save-every", "1", "--lr", "1e30")
    assert_told(done, "training diverged", "no finite number", "lower the learning rate")
    steps = checkpoint.steps(place / "out")
    assert len(steps) < 20
    assert steps == [r["step"] for r in metrics(place / "out")]
    for step in steps:
        checkpoint.verify(place / "out", step)
    assert all(np.isfinite(r["loss"]) for r in metrics(place / "out"))


def limited(place, way, at, size):
    """Run the job; from step ``at`` on no file may grow beyond ``size`` bytes, as if the disk were full."""
    options = (*TINY, "--data", "text.txt", "--out", "out")
    return run(place, way, str(at), str(size), *options, job=gpt_job.AT_A_STEP)


@pytest.mark.parametrize("way", WAYS)
def test_no_space_for_a_checkpoint(place, way):
    done = limited(place, way, 7, 100_000)
    assert_told(done, "checkpoint of step 10 not written to out", "the latest is of step 5", "too large")
    assert_intact(place / "out", [5], 10)


@pytest.mark.parametrize("way", WAYS)
def test_no_space_for_metrics(place, way):
    done = limited(place, way, 7, 10)
    assert_told(done, "metrics cannot be written", "metrics.jsonl", "too large")
    assert_intact(place / "out", [5], 7)


def assert_intact(out, steps, last):
    names = sorted(p.name for p in out.iterdir() if p.name != "flight")  # where ranks stood is kept when a job fails
    assert names == [".lock", "metrics.jsonl", *(f"step-{step:08d}" for step in steps)]
    for step in steps:
        checkpoint.verify(out, step)
    assert [r["step"] for r in metrics(out)] == list(range(1, last + 1))


@pytest.fixture
def small_disk(place):
    """Mount a disk of 1.3 MB as ``out``: two checkpoints and two ranks' records fit, three checkpoints do not."""
    out = place / "out"
    out.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1320k", "tmpfs", str(out)]
    mounted = os.geteuid() == 0 and subprocess.run(["mount", *options], capture_output=True).returncode == 0
    if not mounted:
        pytest.skip("no right to mount a small disk")
    yield place
    subprocess.run(["umount", str(out)], check=True)


def test_a_full_disk(small_disk):
    done = run(small_disk, "launch 2", *TINY, "--data", "text.txt", "--out", "out")
    assert_told(done, "checkpoint of step 15 not written", "step 10", "No space left", "free some space")
    assert_intact(small_disk / "out", [5, 10], 15)
