"""Saving is atomic: whatever ends it leaves the last whole checkpoint and nothing in the way of the next."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from hpcdist.checkpoint import CheckpointError, latest, load, save, steps, verify
from hpcdist.comm import local

REPEATS = int(os.environ.get("HPCDIST_TEST_REPEATS", "2"))


def state(number):
    return {"w": np.full(5000, float(number)), "optim/m": np.full((3, 3), -number, "f4"), "step": number}


def holds(folder, step, number):
    loaded = load(folder, step=step)
    return loaded["step"] == number and (loaded["w"] == number).all() and (loaded["optim/m"] == -number).all()


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_same_step_again_replaces_it(tmp_path):
    for number in (1, 2, 3):
        save(tmp_path, state(number), step=10)
        assert holds(tmp_path, 10, number)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_leftovers_of_the_same_step_go(tmp_path):
    save(tmp_path, state(1), step=10)
    for name in ("step-00000020.tmp", "step-00000020.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.h5").write_text("half")
    assert latest(tmp_path) == 10
    save(tmp_path, state(2), step=20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000020"]


def test_everything_is_synced_before_the_rename(tmp_path, monkeypatch):
    """Fsync of both files and their folder, then rename, then fsync of the parent."""
    log = []
    fsync, rename = os.fsync, os.rename

    def logged_fsync(fd):
        log.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))  # noqa: PTH115, PTH119
        fsync(fd)

    def logged_rename(old, new, **kw):
        log.append(("rename", os.path.basename(new)))  # noqa: PTH119
        rename(old, new, **kw)

    save(tmp_path, state(0), step=1)
    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "rename", logged_rename)
    save(tmp_path, state(1), step=2)
    assert log == [
        ("fsync", "index.h5"),
        ("fsync", "manifest.json"),
        ("fsync", "step-00000002.tmp"),
        ("rename", "step-00000002"),
        ("fsync", tmp_path.name),
    ]


CRASHES = """
    import os, signal, sys
    import numpy as np
    from pathlib import Path
    from hpcdist.checkpoint import latest, load, save

    def state(number):
        return {"w": np.full(5000, float(number)), "optim/m": np.full((3, 3), -number, "f4"), "step": number}

    def arm(countdown):
        # die before or after the n-th system call that changes something
        def tick():
            nonlocal countdown
            countdown -= 1
            if countdown < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        for name in ("pwrite", "fsync", "rename", "mkdir", "unlink", "rmdir"):
            def wrapped(*args, real=getattr(os, name), **kw):
                tick()
                result = real(*args, **kw)
                tick()
                return result
            setattr(os, name, wrapped)

    root = Path(sys.argv[1])
    again = sys.argv[2] == "again"
    for point in range(1000):
        folder = root / str(point)
        save(folder, state(1), step=10)
        if again:
            save(folder, state(2), step=20)
        child = os.fork()
        if child == 0:
            arm(point)
            save(folder, state(3), step=20)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        step = latest(folder)
        loaded = load(folder)
        number = loaded["step"]
        assert step == 20 or not again, (point, step)
        assert (step, number) in ((10, 1), (20, 2), (20, 3)), (point, step, number)
        assert (loaded["w"] == number).all() and (loaded["optim/m"] == -number).all(), point
        save(folder, state(4), step=20)
        assert load(folder)["step"] == 4, point
        assert sorted(path.name for path in folder.iterdir()) == ["step-00000010", "step-00000020"], point
        if status == 0:
            assert number == 3
            break
    print("points", point)
"""


@pytest.mark.parametrize("again", ["new", "again"])
def test_killed_at_every_system_call(tmp_path, again):
    """Case B33 for one writer: kill -9 between any two calls that change the disk."""
    command = [sys.executable, "-c", textwrap.dedent(CRASHES), str(tmp_path), again]
    out = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert out.returncode == 0, out.stderr
    assert int(out.stdout.split()[1]) >= 18


LOOP = """
    import sys
    import numpy as np
    from hpcdist.checkpoint import save
    print("ready", flush=True)
    for step in range(10**6):
        save(sys.argv[1], {"w": np.full(300_000, float(step)), "step": step}, step=step % 7)
"""


@pytest.mark.parametrize("seed", range(REPEATS))
def test_killed_at_any_moment(tmp_path, seed):
    command = [sys.executable, "-c", textwrap.dedent(LOOP), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as saver:
        saver.stdout.readline()
        while latest(tmp_path) is None and saver.poll() is None:
            time.sleep(0.005)
        time.sleep(random.Random(seed).uniform(0.05, 0.4))
        saver.send_signal(signal.SIGKILL)
    assert saver.returncode == -signal.SIGKILL
    found = steps(tmp_path)
    assert found
    for step in found:
        loaded = load(tmp_path, step=step)
        assert loaded["step"] % 7 == step
        assert (loaded["w"] == loaded["step"]).all()


def test_a_full_disk(tmp_path):
    """A limit on the size of files fails the writes of values, then those of HDF5's own structures."""
    save(tmp_path, state(1), step=1)
    descriptors = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    many = {f"p{i}": np.zeros(1) for i in range(2000)}
    for big in ({"w": np.zeros(100_000)}, many):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(
                CheckpointError, match=r"(?s)earlier ones are intact, the latest is of step 1.*too large"
            ):
                save(tmp_path, big, step=2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert holds(tmp_path, 1, 1)
    assert open_descriptors() <= descriptors + 1  # HDF5 keeps the file it could not finish
    save(tmp_path, state(2), step=2)
    verify(tmp_path, 2)


def test_the_folder_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="no earlier one exists"):
        save(tmp_path / "file", {}, step=1)
    with pytest.raises(CheckpointError, match="file/sub"):
        save(tmp_path / "file/sub", {}, step=1)


def failing(call, name, error):
    """Return ``call`` that raises ``error`` when it concerns a file ``name``."""

    def wrapped(fd, *args):
        if os.readlink(f"/proc/self/fd/{fd}").endswith(name):  # noqa: PTH115
            raise OSError(error, os.strerror(error))
        return call(fd, *args)

    return wrapped


POINTS = [("pwrite", "index.h5"), ("fsync", "index.h5"), ("fsync", "manifest.json"), ("fsync", ".tmp")]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("call", "name"), POINTS)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_failure_on_rank_0_is_one_error_everywhere(tmp_path, monkeypatch, size, call, name, error):
    save(tmp_path, state(1), step=1)
    monkeypatch.setattr(os, call, failing(getattr(os, call), name, error))

    def rank(comm):
        try:
            save(tmp_path, state(2), step=2, comm=comm)
        except CheckpointError as caught:
            return str(caught)
        return None

    messages = local.run(size, rank)
    assert len(set(messages)) == 1
    assert os.strerror(error) in messages[0]
    assert "the latest is of step 1" in messages[0]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_rank_0_writes_once_and_all_return_after_it(tmp_path, size):
    def rank(comm):
        save(tmp_path, state(comm.rank), step=5, comm=comm)
        return latest(tmp_path)

    assert local.run(size, rank) == [5] * size
    assert holds(tmp_path, 5, 0)


def test_a_bad_state_is_the_same_error_everywhere(tmp_path):
    def rank(comm):
        with pytest.raises(ValueError, match="name of an entry"):
            save(tmp_path, {"a//b": 1}, step=5, comm=comm)
        return latest(tmp_path)

    assert local.run(3, rank) == [None] * 3


def test_descriptors_are_not_lost(tmp_path):
    """Case B38 (e)."""
    save(tmp_path, state(0), step=0)
    before = open_descriptors()
    (tmp_path / "step-00000001").mkdir()
    for number in range(20):
        save(tmp_path, state(number), step=2)
        load(tmp_path)
        with pytest.raises(CheckpointError):
            load(tmp_path, step=1)
    assert open_descriptors() == before
