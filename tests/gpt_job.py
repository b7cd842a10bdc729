"""Runs of jobs/gpt.py as users start them, on a model so small that a run takes a second or two."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from hpcdist.backends import cpu, mpi
from hpcdist.elastic.command import Site, compose
from hpcdist.elastic.job import Job

JOB = Path(__file__).parents[1] / "jobs/gpt.py"
LIMIT_S = 100
SEQ, GLOBAL_BATCH, MICRO_BATCH, STEPS = 32, 16, 2, 20
TINY = (
    *("--layers", "1", "--width", "32", "--heads", "2", "--seq", str(SEQ), "--global-batch", str(GLOBAL_BATCH)),
    *("--micro-batch", str(MICRO_BATCH), "--steps", str(STEPS), "--save-every", "5", "--val-every", "10"),
    *("--mlp", "gelu", "--norm", "layer", "--positions", "learned"),
)
FLAVOURS = {
    "plain": (),
    "modern": ("--mlp", "swiglu", "--norm", "rms", "--positions", "rotary", "--dropout", "0.1"),
}

AT_A_STEP = f"""
import os, resource, runpy, sys, time
from pathlib import Path
from hpcdist import train

step_of_event, event, *arguments = sys.argv[1:]

def pause():
    Path(f"paused-{{os.getpid()}}").touch()
    time.sleep({LIMIT_S})

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))

class Progress(train.Progress):
    def update(self, step, *numbers):
        super().update(step, *numbers)
        if step == int(step_of_event):
            pause() if event == "pause" else limit(event)

train.Progress = Progress
sys.argv = [{str(JOB)!r}, *arguments]
runpy.run_path({str(JOB)!r}, run_name="__main__")
"""
"""The main job, in which something happens at a step: ``STEP pause ...``, or ``STEP BYTES ...``, a limit of files."""


@dataclass(frozen=True)
class Done:
    """A run that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def said(self):
        return self.out + self.err


def write_text(path):
    """Write a text of 8800 bytes: 261 samples to train on, fewer than 20 steps take, and 13 to validate with."""
    rng = np.random.default_rng(7)
    words = ["".join(rng.choice(list("etaoinshrdlu"), rng.integers(1, 8))) for _ in range(60)]
    path.write_text(" ".join(rng.choice(words, 4000))[:8800])
    return path


def command(way, *arguments, job=JOB):
    """Return how a user starts ``job``: ``way`` is python, launch N or mpirun N."""
    name, *count = way.split()
    words = (str(job), *arguments)
    if name == "python":
        return [sys.executable, *words], {}
    if name == "launch":
        return [sys.executable, "-m", "hpcdist", "launch", "-n", *count, *words], {}
    site = Site(variables={}, cores=1, slots=cpu.physical_cores(), root=os.geteuid() == 0)
    composed = compose(mpi.find(), Job("program", sys.executable, words), int(count[0]), site)
    return composed.argv, {name: composed.variables[name] for name in composed.variables if "ROOT" in name}


def start(folder, way, *arguments, job=JOB, variables=(), **options):
    """Start ``job``, the main job or ``AT_A_STEP`` as text, in ``folder``."""
    if not isinstance(job, Path):
        job, text = folder / "at_a_step.py", job
        job.write_text(text)
    argv, more = command(way, *arguments, job=job)
    # one thread: a second one costs more than it brings on arrays of this size
    return subprocess.Popen(
        argv,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **more, **dict(variables)},
        stdin=subprocess.DEVNULL,
        **options,
    )


def run(folder, way, *arguments, **options):
    began = time.monotonic()
    started = start(folder, way, *arguments, **options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = started.communicate(timeout=LIMIT_S)
    finally:
        started.kill()
        started.wait()
    return Done(started.returncode, out.decode(), err.decode(), time.monotonic() - began)


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder):
    """Return the losses of all steps, and the validation losses."""
    records = metrics(folder)
    assert [r["step"] for r in records] == list(range(1, STEPS + 1))
    return [r["loss"] for r in records], [r["val_loss"] for r in records if "val_loss" in r]


def assert_same_losses(folder, reference):
    for mine, expected in zip(losses(folder), losses(reference), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-5)


def weights_of(out, step):
    """Read the parameters as someone would who has only h5py."""
    with h5py.File(out / f"step-{step:08d}" / "index.h5") as file:
        return {name: item[...] for name, item in file.items() if isinstance(item, h5py.Dataset)}


def snapshot(folder):
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(folder.rglob("*")) if p.is_file()}


def wait_for(condition, what):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.02)


def is_gone(pid):
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
