"""Folders of runs: new ones, ones to go on with, and the wrong ones."""

import json
import subprocess
import sys

import numpy as np
import pytest

from hpcdist import checkpoint, config
from hpcdist.comm import local
from hpcdist.train import Metrics, open_folder


@pytest.fixture
def started_again(monkeypatch):
    monkeypatch.setattr(config, "environment", lambda: config.Environment(restart_count=1))


def opened(out, num_ranks=2, *, resume=False):
    return local.run(num_ranks, lambda comm: open_folder(out, comm, name="trial", resume=resume))


def run_to(folder, step, saved=()):
    """Leave behind what a run to ``step`` leaves."""
    with Metrics(folder) as metrics:
        for i in range(1, step + 1):
            metrics.append({"step": i, "loss": 1 / i})
    for i in saved:
        checkpoint.save(folder, {"x": np.ones(3)}, step=i)


def steps_of(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_missing_folders_are_made(tmp_path):
    assert opened(tmp_path / "a/b") == [(tmp_path / "a/b", None)] * 2
    assert (tmp_path / "a/b").is_dir()


def test_default_folders_are_new_also_within_a_second(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda text: text.replace("%Y%m%d-%H%M%S", "20300102-030405"))
    found = [opened(None)[0] for _ in range(3)]
    names = [f"runs/trial-20300102-030405{suffix}" for suffix in ("", "-2", "-3")]
    assert [(str(folder), step) for folder, step in found] == [(name, None) for name in names]
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("runs/*")) == sorted(names)


def test_resume_takes_the_latest_and_drops_later_metrics(tmp_path):
    run_to(tmp_path, 9, saved=(2, 5))
    assert opened(tmp_path, resume=True) == [(tmp_path, 5)] * 2
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5]


def test_checkpoints_without_resume_are_an_error_and_stay(tmp_path):
    run_to(tmp_path, 9, saved=(5,))
    with pytest.raises(ValueError, match="--resume"):
        opened(tmp_path)
    assert steps_of(tmp_path) == list(range(1, 10))
    checkpoint.verify(tmp_path, 5)


@pytest.mark.usefixtures("started_again")
def test_a_job_that_was_started_again_goes_on_by_itself(tmp_path):
    run_to(tmp_path, 9, saved=(5,))
    assert opened(tmp_path) == [(tmp_path, 5)] * 2
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("started_again")
def test_a_job_that_was_started_again_before_its_first_checkpoint_starts_over(tmp_path):
    run_to(tmp_path, 3)
    assert opened(tmp_path) == [(tmp_path, None)] * 2
    assert steps_of(tmp_path) == []


@pytest.mark.usefixtures("started_again")
def test_a_job_that_was_started_again_without_out_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="--out DIR"):
        opened(None)
    assert list(tmp_path.iterdir()) == []


def test_resume_needs_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="--out DIR"):
        opened(None, resume=True)
    with pytest.raises(ValueError, match="no run to go on with in"):
        opened(tmp_path / "typo", resume=True)
    assert list(tmp_path.iterdir()) == []
    run_to(tmp_path / "begun", 3)
    assert opened(tmp_path / "begun", resume=True) == [(tmp_path / "begun", None)] * 2
    assert steps_of(tmp_path / "begun") == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written to") as caught:
        opened(tmp_path / "file/run")
    assert "Not a directory" in str(caught.value)
    assert "--out" in str(caught.value)


def test_two_jobs_do_not_share_a_folder(tmp_path, monkeypatch):
    program = (
        "import sys, time; from hpcdist.train.folder import open_folder; from hpcdist.comm import local;"
        "open_folder(sys.argv[1], local.solo(), name='x'); print('mine', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "mine\n"
        monkeypatch.setattr("hpcdist.train.folder._LINGER_S", 0.1)
        with pytest.raises(ValueError, match="another job is writing"):
            opened(tmp_path)
    finally:
        other.kill()
        other.communicate()
    assert opened(tmp_path) == [(tmp_path, None)] * 2
