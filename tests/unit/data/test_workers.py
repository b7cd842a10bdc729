"""Loaders with worker processes: order, errors, ends, and that nothing outlives its rank."""

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import h5py
import numpy as np
import pytest
from fetched_data import (
    ABANDONED,
    JOB,
    STUCK,
    Draws,
    Environment,
    Locked,
    Mapped,
    OpenFiles,
    Refuses,
    Rows,
    Squares,
    total,
)

from hpcdist.data import DataLoader, DistributedSampler, HDF5Dataset, Windows
from hpcdist.data.transfer import packed


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


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


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
    with pytest.raises(RuntimeError, match=r"got +SIGKILL"):
        list(iterator)


def test_a_killed_server_is_an_error_and_the_next_loader_starts_another(loader):
    made = loader(range(100), 1, num_workers=1, prefetch=0)
    iterator = iter(made)
    next(iterator)
    server = parent(pids(made)[0])
    os.kill(server, signal.SIGKILL)
    wait_until_gone(pids(made))
    with pytest.raises(RuntimeError, match="worker 0 has ended"):
        list(iterator)
    assert len(list(loader(range(4), 2, num_workers=1))) == 2


def test_what_cannot_be_opened_in_a_worker_says_why(loader):
    with pytest.raises(OSError, match="marker-locked") as caught:
        list(loader(Locked(), batches(2), num_workers=1))
    text = "".join(traceback.format_exception(caught.value))
    assert "in worker 0:" in text
    assert "__setstate__" in text


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
    assert (state["sampler"]["epoch"], state["sampler"]["position"]) == (0, 4)
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


def test_what_was_closed_says_so(loader):
    made = loader(range(4), 2, num_workers=1)
    made.close()
    with pytest.raises(RuntimeError, match="its workers have ended"):
        list(made)


def test_more_workers_than_samples_and_two_loaders_at_once(loader):
    first, second = loader(range(3), 2, num_workers=5), loader(range(10, 13), 2, num_workers=1)
    together = list(zip(first, second, strict=True))
    assert [[part.tolist() for part in pair] for pair in together] == [[[0, 1], [10, 11]], [[2], [12]]]
    assert not set(pids(first)) & set(pids(second))


def test_workers_draw_different_random_numbers(loader):
    draws = dict(loader(Draws(), batches(4), num_workers=2))
    assert len(draws) == 2
    first, second = draws.values()
    assert first != second


def test_every_worker_opens_the_file_itself(loader, tmp_path):
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("y", data=np.arange(12), chunks=(3,), compression="gzip")
    data = HDF5Dataset(path, "y")
    data.batch([0])  # open here, too
    answers = list(loader(OpenFiles(data), batches(6), num_workers=2))
    data.close()
    assert len({pid for pid, _, _ in answers}) == 2
    assert {handles for _, handles, _ in answers} == {1}
    assert [rows for _, _, rows in answers] == [[i, i + 1] for i in range(0, 12, 2)]


def test_a_mapped_array_is_mapped_again_not_sent(loader, tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(100_000, dtype="<u2"))
    whole = np.load(path, mmap_mode="r")
    for part, kind in ((whole, "memmap"), (whole[70_000:70_010], "memmap"), (whole[:0], "ndarray")):
        told = next(iter(loader(Mapped(part), batches(1), num_workers=1)))
        assert told == (kind, False, "<u2", part.tolist())
    assert next(iter(loader(Mapped(whole[1::2]), batches(1), num_workers=1)))[3] == whole[1::2].tolist()
    private = np.load(path, mmap_mode="c")
    private[0] = 7
    assert next(iter(loader(Mapped(private), batches(1), num_workers=1)))[3][:2] == [7, 1]
    assert len(packed((Windows(whole, 9), None))) < 2000


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
            server = [parent(pid) for pid in workers]
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


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_does_not_wait_for_the_storage(tmp_path, workers):
    path = tmp_path / "job.py"
    path.write_text(STUCK)
    command = [sys.executable, str(path), str(workers)]
    rank = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with rank:
        assert rank.stdout.readline() == "ready\n"
        started = [int(child) for child in children(rank.pid)]
        time.sleep(0.5)
        rank.send_signal(signal.SIGINT)
        told = rank.stderr.read()
        rank.wait(10)
    assert told.count("Traceback") == told.count("KeyboardInterrupt") == 1
    wait_until_gone(started)


def test_a_process_ends_though_iterators_are_left_alive(tmp_path):
    """Their threads are in the midst of reading a file then."""
    path = tmp_path / "job.py"
    path.write_text(ABANDONED)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=20, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "256 256\n", "")
