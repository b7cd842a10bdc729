"""The job on fields: its equation is solved rightly, its losses are the same on any number of ranks, it learns."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gpt_job
import numpy as np
import pytest

from hpcdist import train
from hpcdist.autograd import Tensor, no_grad
from hpcdist.comm import local

JOB = Path(__file__).parents[2] / "jobs/fields.py"
SAMPLES, CELLS, STEPS = 12, 8, 6
TINY = (
    *("--samples", str(SAMPLES), "--cells", str(CELLS), "--width", "4", "--depth", "1", "--steps", str(STEPS)),
    *("--global-batch", "8", "--micro-batch", "2", "--val-every", "3", "--save-every", "3"),
)
STATED_ERROR = 0.06


@pytest.fixture(scope="module")
def fields():
    spec = importlib.util.spec_from_file_location("fields_as_a_library", JOB)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the folder of a run by one process."""
    folder = tmp_path_factory.mktemp("alone")
    said = gpt_job.run(folder, "python", *TINY, "--out", "out", job=JOB)
    assert said.code == 0, said.said
    return folder / "out"


def numbers(folder):
    records = gpt_job.metrics(folder)
    assert [r["step"] for r in records] == list(range(1, STEPS + 1))
    assert min(r["samples_per_s"] for r in records) > 0
    return [r["loss"] for r in records], [r["val_loss"] for r in records if "val_loss" in r]


# ---------------------------------------------------------------- the equation
def test_fluxes_balance_the_source_in_every_cell(fields):
    """With a wall of half a cell outside: what leaves a cell through its four faces is its share of the source."""
    a = fields.media(3, 10, seed=1)
    assert set(np.unique(a)) == set(fields.MATERIALS)
    padded = np.pad(fields.solve(a), ((0, 0), (1, 1), (1, 1)))
    inside = (slice(None), slice(1, -1), slice(1, -1))
    leaving = np.zeros(a.shape)
    for axis, step in ((1, 1), (1, -1), (2, 1), (2, -1)):
        neighbour = np.roll(np.pad(a, ((0, 0), (1, 1), (1, 1)), constant_values=np.inf), step, axis)[inside]
        resistance = 0.5 / a + 0.5 / neighbour  # of the way from centre to centre; there is none outside
        leaving += (padded[inside] - np.roll(padded, step, axis)[inside]) / resistance
    np.testing.assert_allclose(leaving, 1 / 10**2, rtol=1e-9)


def test_solutions_converge_to_the_series_of_a_uniform_square(fields):
    odd = np.arange(1, 80, 2)
    waves = np.pi**4 * np.outer(odd, odd) * (odd[:, None] ** 2 + odd**2)
    mean = (64 / np.pi**2 / np.outer(odd, odd) / waves).sum()  # the sum of 16 / waves sin sin, averaged
    errors = [abs(fields.solve(np.ones((1, n, n))).mean() - mean) for n in (8, 16, 32)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)


# ---------------------------------------------------------------- the run
def test_losses_are_those_of_one_process(alone, tmp_path):
    said = gpt_job.run(tmp_path, "launch 2", *TINY, "--out", "out", job=JOB)
    assert said.code == 0, said.said
    assert re.search(r"samples/s +done", said.out)
    for mine, expected in zip(numbers(tmp_path / "out"), numbers(alone), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-5)


def test_resumed_it_is_as_if_nothing_had_happened(alone, tmp_path):
    shutil.copytree(alone, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / f"step-{STEPS:08d}")
    said = gpt_job.run(tmp_path, "python", *TINY, "--out", "out", "--resume", job=JOB)
    assert said.code == 0, said.said
    assert "from step 3 to step 6" in said.out
    for mine, expected in zip(numbers(tmp_path / "out"), numbers(alone), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-6)


def test_losses_are_mean_relative_errors(fields, alone, tmp_path):
    """Of the first step, by the first weights; and of what was held out, by the last."""
    words = [*TINY, "--out", str(tmp_path / "out")]
    options = train.parse_options(fields.Options, local.solo(), words)
    first = fields.build(options).model
    turn = np.argsort(np.random.Philox(key=np.zeros(2, np.uint64)).random_raw(SAMPLES), kind="stable")[:8]
    training, validation = numbers(alone)
    assert training[0] == pytest.approx(error(first, fields.problems(SAMPLES, CELLS, 0).batch(turn)), abs=1e-5)
    (loop, _) = local.run(2, lambda comm: fields.job(options, comm))
    everything = np.arange(fields.HELD_OUT)
    expected = error(loop.state.model, fields.problems(fields.HELD_OUT, CELLS, 1).batch(everything))
    assert validation[-1] == pytest.approx(expected, abs=1e-5)
    assert validation[-1] < validation[0]


def error(model, batch):
    a, u = batch
    with no_grad():
        found = model.net(Tensor(a)).numpy().astype(float)
    return np.mean([np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(found, u.astype(float), strict=True)])


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--cells", "9", "--cells\n +got +9\n +expected +a multiple of 2"),
        ("--samples", "0", "--samples\n +got +0\n +expected +at least 1"),
        ("--width", "6", "UNet: width"),
        ("--micro-batch", "0", "micro_batch"),
    ],
)
def test_wrong_flags_end_it_with_a_message(fields, flag, value, words):
    options = train.parse_options(fields.Options, local.solo(), [*TINY, flag, value])
    with pytest.raises(ValueError, match=words):
        fields.job(options, local.solo())


@pytest.mark.soak
def test_it_reaches_the_stated_accuracy(tmp_path):
    argv, _ = gpt_job.command("launch 2", "--out", "out", job=JOB)
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=True)
    found = float(re.findall(r"val_loss ([\d.]+)", done.stdout)[-1])
    assert found == pytest.approx(gpt_job.metrics(tmp_path / "out")[-1]["val_loss"], abs=1e-4)
    assert found < STATED_ERROR
