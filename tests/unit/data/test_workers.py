"""Loaders with worker processes: order, errors, ends, and that nothing outlives its rank."""

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
from fetched_data import JOB, Environment, Refuses, Rows, Squares, total

from hpcdist.data import DataLoader, DistributedSampler


def batches(n, size=2):
    return [np.arange(i * size, (i + 1) * size) for i in range(n)]


@pytest.fixture
def loader():
    """Make loaders that are closed at the end."""
    made = []

    def make(*args, **kwargs):
        made.append(DataLoader(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def pids(loader):
    return [process.pid for process in loader._workers._processes]


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_until_gone(pids, limit_s=10):
    deadline = time.monotonic() + limit_s
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert all(map(gone, pids))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_all_batches_in_order_epoch_after_epoch(loader, prefetch):
    made = loader(Squares(), batches(6), num_workers=2, prefetch=prefetch)
    for _ in range(2):
        assert np.concatenate(list(made)).tolist() == [i * i for i in range(12)]


def test_samples_are_collated_in_several_processes(loader):
    made = loader(Rows(), 2, num_workers=2)
    got = list(made)
    assert [batch["x"][:, 0, 0].tolist() for batch in got] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    processes = {int(pid) for batch in got for pid in batch["process"]}
    assert processes == set(pids(made))
    assert os.getpid() not in processes


def test_collate_fn(loader):
    assert list(loader(Rows(), 5, num_workers=1, collate_fn=total)) == [10, 35]


def test_an_error_arrives_at_its_batch_with_the_workers_traceback(loader):
    made, seen = loader(Squares(), batches(9), num_workers=2), []
    with pytest.raises(KeyError, match="marker-13") as caught:
        seen.extend(batch[0] for batch in made)
    assert seen == [0, 4, 16, 36, 64, 100]
    text = "".join(traceback.format_exception(caught.value))
    assert "in worker 1:" in text
    assert "fetched_data.py" in text
    assert 'raise KeyError("marker-13")' in text
    made.batches = batches(3)  # the workers are as good as new
    made.load_state_dict({"delivered": 0})
    assert len(list(made)) == 3


def test_an_error_that_cannot_travel_is_told_in_words(loader):
    with pytest.raises(RuntimeError, match="UnfriendlyError: marker two"):
        list(loader(Refuses(), batches(1), num_workers=1))


def test_a_worker_that_ends_is_an_error(loader):
    with pytest.raises(RuntimeError, match=r"(?s)worker . has ended.*exit code 3"):
        list(loader(Squares(), [np.array([0]), np.array([66]), np.array([1])], num_workers=2))


def test_a_killed_worker_is_an_error(loader):
    made = loader(Squares(), batches(50), num_workers=2, prefetch=0)
    iterator = iter(made)
    next(iterator)
    for pid in pids(made):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"exit code -9 \(a signal\)"):
        list(iterator)


def test_a_wait_has_a_limit(loader):
    with pytest.raises(TimeoutError, match="no batch"):
        list(loader(Squares(), [np.array([99])], num_workers=1, prefetch=0, timeout_s=0.2))


def test_an_iteration_that_is_left_leaves_nothing_behind(loader):
    made = loader(Rows(), [np.array([i]) for i in range(10)], num_workers=2)
    for batch in made:
        assert batch["x"][0, 0, 0] == 0
        break
    assert [int(batch["x"][0, 0, 0]) for batch in made] == list(range(1, 10))  # goes on where it was left


def test_state_counts_what_was_delivered(loader):
    sampler = DistributedSampler(10, 1, 0, shuffle=True, seed=4)
    whole = [sample for batch in loader(Squares(), 1, sampler=sampler) for sample in batch]
    made = loader(Squares(), 1, sampler=DistributedSampler(10, 1, 0, seed=4), num_workers=2, prefetch=3)
    iterator = iter(made)
    head = [next(iterator)[0] for _ in range(4)]
    state = made.state_dict()
    assert state == {"sampler": {"epoch": 0, "position": 4}}
    iterator.close()
    again = loader(Squares(), 1, sampler=DistributedSampler(10, 1, 0, seed=4), num_workers=1)
    again.load_state_dict(state)
    assert head + [batch[0] for batch in again] == whole


def test_a_worker_never_calls_mpi_and_uses_one_thread(loader, monkeypatch):
    for name, value in (("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "2")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    mpi, threads, said = next(iter(loader(Environment(), batches(1), num_workers=1)))
    assert (mpi, threads) == (False, 1)
    assert "LaunchError: init: called in a worker" in said


def test_what_cannot_be_pickled_is_refused_at_once():
    class Local:
        def batch(self, indices):
            return indices

    with pytest.raises(TypeError, match="num_workers"):
        DataLoader(Local(), batches(1), num_workers=1)
    with pytest.raises(ValueError, match="num_workers"):
        DataLoader(Squares(), batches(1), num_workers=-1)


def test_workers_end_with_the_loader():
    for end in ("close", "forget"):
        made = DataLoader(Squares(), batches(2), num_workers=2)
        started = pids(made)
        list(made)
        if end == "close":
            made.close()
        del made
        wait_until_gone(started)


@pytest.mark.parametrize("how", ["end", "raise", "SIGTERM", "SIGKILL"])
def test_workers_end_with_their_rank_however_it_ends(tmp_path, how):
    path = tmp_path / "job.py"
    path.write_text(JOB)
    rank = subprocess.Popen(
        [sys.executable, "-m", "hpcdist", "run", str(path), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with rank:
        workers = [int(word) for word in rank.stdout.readline().split()]
        try:
            server = [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in workers]
        except OSError:
            server = []  # gone already
        if how.startswith("SIG"):
            rank.send_signal(getattr(signal, how))
        told = rank.stderr.read()
        rank.wait(10)
    assert len(workers) == 2
    assert told.count("Traceback") == (how == "raise")  # workers end without a word
    wait_until_gone(workers + server)


def test_a_job_that_starts_itself_when_imported_is_told_so(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(JOB.replace('if __name__ == "__main__":', "if True:"))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode != 0
    assert "must not start it when it is imported" in done.stderr
