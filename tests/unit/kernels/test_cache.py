"""Case B51: kernels on disk, shared by processes, machines and kinds of CPU; a set of two small kernels."""

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from hpcdist.backends import cpu
from hpcdist.kernels.cpu import cache, lock
from hpcdist.kernels.cpu.compiled import Compiled
from hpcdist.kernels.cpu.lock import FileLock


def _scale(x, factor, num_threads):
    for i in range(x.size):
        x[i] *= factor + num_threads - num_threads


def _fill(x, value, num_threads):
    for i in range(x.size):
        x[i] = value + num_threads - num_threads


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that acts as a new process would: two kernels, statistics at zero; gives those."""
    monkeypatch.setattr(cache._settings, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cpu, "num_threads", lambda: 1)

    def begin():
        cache._told.cache_clear()
        monkeypatch.setattr(cache, "STATISTICS", cache.Statistics())
        x = np.ones(3, np.float32)
        Compiled(_fill)(x, np.float32(2))
        Compiled(_scale)(x, np.float32(3))
        assert x.tolist() == [6, 6, 6]
        return cache.STATISTICS.compiled, cache.STATISTICS.loaded

    yield begin
    cache._told.cache_clear()


def kept(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_warm_start_compiles_nothing(start, tmp_path):
    assert start() == (2, 0)
    assert [path.suffix for path in kept(tmp_path / "cache")] == [".kernel"] * 2
    assert start() == (0, 2)
    assert not (tmp_path / "home").exists()


def test_without_the_variable_the_users_folder_is_used(start, tmp_path, monkeypatch):
    monkeypatch.setattr(cache._settings, "CACHE_DIR", "")
    assert (start(), start()) == ((2, 0), (0, 2))
    assert len(kept(tmp_path / "home" / "hpcdist")) == 2


def test_another_kind_of_cpu_shares_nothing(start, tmp_path, monkeypatch):
    real = cache._cpu
    start()
    monkeypatch.setattr(cache, "_cpu", lambda codegen: f"fake-{real(codegen)}")
    assert start() == (2, 0)
    assert len({path.parent for path in kept(tmp_path / "cache")}) == 2


def test_name_and_instructions_make_the_kind():
    class Codegen:
        def __init__(self, *magic):
            self.magic_tuple = lambda: magic

    kinds = [("x86", "znver4", "+avx512f"), ("x86", "znver4", ""), ("x86", "zen3", ""), ("arm", "zen3", "")]
    names = [cache._cpu(Codegen(*kind)) for kind in kinds]
    assert len(set(names)) == 4
    assert names[0].startswith("znver4-")


@pytest.mark.parametrize("damage", [b"", b"garbage", "cut", "flipped"])
def test_a_damaged_file_is_told_of_once_and_replaced(start, tmp_path, damage, caplog):
    start()
    for path in kept(tmp_path / "cache"):
        good = path.read_bytes()
        bad = {"cut": good[:-1], "flipped": good[:-9] + bytes([good[-9] ^ 1]) + good[-8:]}.get(damage, damage)
        path.write_bytes(bad)
    with caplog.at_level(logging.WARNING, "hpcdist"):
        assert start() == (2, 0)
    assert [r.message.split(":")[0] for r in caplog.records] == ["a compiled kernel is damaged, and is compiled again"]
    assert start() == (0, 2)


def test_a_folder_that_is_deleted_comes_back(start, tmp_path, caplog):
    start()
    shutil.rmtree(tmp_path / "cache")
    assert start() == (2, 0)
    assert start() == (0, 2)
    assert not caplog.records


@pytest.mark.parametrize("edited", ["kernels/optimizer.py", "kernels/noise.py", "kernels/cpu/vector.py"])
def test_sources_are_all_that_is_compiled_in(edited, monkeypatch):
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * path.as_posix().endswith(edited))
    assert cache._sources() != cache._SOURCES


class TestReadOnly:
    @pytest.fixture
    def read_only(self, tmp_path, monkeypatch):
        """Make folders refuse new files, for root too."""
        refused, touch = [], Path.touch

        def refuse(path, *args, **kwargs):
            if any(folder in path.parents for folder in refused):
                raise OSError(errno.EROFS, "Read-only file system", str(path))
            touch(path, *args, **kwargs)

        monkeypatch.setattr(Path, "touch", refuse)
        return lambda *names: refused.extend(tmp_path / name for name in names)

    def test_a_warm_folder_is_used_without_a_word(self, start, read_only, tmp_path, caplog):
        start()
        read_only("cache")
        assert start() == (0, 2)
        assert not caplog.records

    def test_a_cold_one_is_replaced_by_the_users(self, start, read_only, tmp_path, caplog):
        read_only("cache")
        assert start() == (2, 0)
        assert len(caplog.records) == 1
        assert "kept in" in caplog.text
        assert "Read-only" in caplog.text
        assert start() == (0, 2)
        assert len(kept(tmp_path / "home")) == 2

    def test_without_any_place_every_start_compiles(self, start, read_only, tmp_path, caplog):
        read_only("cache", "home")
        assert start() == (2, 0)
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert start() == (2, 0)
        assert kept(tmp_path) == []

    def test_a_full_disk_is_told_of_once(self, start, tmp_path, monkeypatch, caplog):
        def full(path, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(cache, "_write", full)
        assert start() == (2, 0)
        assert len(caplog.records) == 1
        assert kept(tmp_path / "cache") == []  # no lock is left either


def test_a_kernel_that_does_not_compile_lets_the_others_go_on(start, tmp_path):
    def _broken(x, num_threads):
        return x.no_such_attribute + num_threads

    for _ in range(2):
        with pytest.raises(Exception, match="no_such_attribute"):
            Compiled(_broken)(np.ones(1))
        assert kept(tmp_path / "cache") == []


# ---------------------------------------------------------------- the lock
def dead_pid():
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kernel.lock"


def test_one_holds_it_until_it_is_released(path):
    first, second = FileLock(path), FileLock(path)
    assert first.acquire()
    assert not second.acquire()
    second.release()  # does not have it
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()
    assert not path.exists()


@pytest.mark.parametrize("holder", ["dead", "reused pid"])
def test_a_holder_of_this_machine_that_ended_is_replaced_at_once(path, holder):
    pid, began = (dead_pid(), "1") if holder == "dead" else (os.getpid(), "1")
    path.write_text(f"{lock._node()} {pid} {began} 00")
    waiting = FileLock(path)
    assert not waiting.acquire()
    assert waiting.acquire()
    waiting.release()


def test_a_holder_of_another_machine_is_given_time(path, monkeypatch):
    """The same process id on another node says nothing; a file that nobody touches does."""
    monkeypatch.setattr(lock, "PATIENCE_S", 0.3)
    path.write_text(f"other/1/pid:[1] {dead_pid()} 1 00")
    waiting = FileLock(path)
    began = time.monotonic()
    for _ in range(5):  # touched, as by a living holder
        assert not waiting.acquire()
        time.sleep(0.1)
        os.utime(path)
    while not waiting.acquire():
        time.sleep(0.02)
    assert time.monotonic() - began > 0.8
    waiting.release()


def test_a_holder_touches_its_file(path, monkeypatch):
    monkeypatch.setattr(lock, "TOUCH_S", 0.05)
    held = FileLock(path)
    assert held.acquire()
    before = path.stat().st_mtime_ns
    deadline = time.monotonic() + 5
    while path.stat().st_mtime_ns == before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert path.stat().st_mtime_ns > before
    held.release()


def test_an_empty_file_is_a_holder_about_to_sign(path):
    path.touch()
    waiting = FileLock(path)
    assert not any(waiting.acquire() for _ in range(3))


# ---------------------------------------------------------------- processes
PROCESSES = """
    import json, os, sys, time
    import numpy as np
    import numba
    from hpcdist.kernels.cpu import cache, lock
    from hpcdist.kernels.cpu.compiled import Compiled, inline

    def _scale(x, factor, num_threads):
        for i in range(x.size):
            x[i] *= factor + num_threads - num_threads

    def _fill(x, value, num_threads):
        for i in range(x.size):
            x[i] = value + num_threads - num_threads

    inline(lambda x: x + 1)(1)  # numba's own start is not what is measured
    starts, kind, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]

    def as_kind(rank):
        if kind == "nodes":  # two machines with the same process ids
            os.getpid = lambda: 7
            lock._node = lambda: f"node{rank % 2}"
        if kind == "slow":
            load = cache.KernelCache.load_overload
            def slowed(self, *args):
                found = load(self, *args)
                if found is None:
                    time.sleep(1)
                return found
            cache.KernelCache.load_overload = slowed
        if kind == "cpus":
            real = cache._cpu
            cache._cpu = lambda codegen: f"kind{rank % 2}-{real(codegen)}"

    def be(rank, go, out):
        as_kind(rank)
        while not os.path.exists(go):
            time.sleep(0.001)
        x = np.ones(3, np.float32)
        Compiled(_fill)(x, np.float32(2))
        Compiled(_scale)(x, np.float32(3))
        assert x.tolist() == [6, 6, 6]
        s = cache.STATISTICS
        os.write(out, (json.dumps([s.compiled, s.loaded, time.monotonic()]) + "\\n").encode())

    for start in range(starts):
        cache._settings.CACHE_DIR = os.path.join(folder, str(start))
        go, (ends, out) = os.path.join(folder, f"go{start}"), os.pipe()
        children = []
        for rank in range(4):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    be(rank, go, out)
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        open(go, "w").close()
        codes = [os.waitpid(child, 0)[1] for child in children]
        os.close(out)
        with os.fdopen(ends) as answers:
            print(json.dumps([codes, [json.loads(line) for line in answers]]))
"""


def started(tmp_path, starts, kind="plain"):
    """Return (compiled, loaded, time of the end) of four processes a start, each start on an empty folder."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROCESSES), str(starts), kind, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60 + 20 * starts,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(codes == [0] * 4 for codes, _ in results)
    return [answers for _, answers in results]


@pytest.mark.parametrize("kind", ["plain", "nodes"])
def test_four_processes_compile_each_kernel_once(tmp_path, repeats, kind):
    for answers in started(tmp_path, repeats, kind):
        assert sum(compiled for compiled, _, _ in answers) == 2
        assert sum(loaded for _, loaded, _ in answers) == 6
    assert {path.suffix for path in kept(tmp_path) if not path.name.startswith("go")} == {".kernel"}


def test_kinds_of_cpu_compile_apart(tmp_path):
    (answers,) = started(tmp_path, 1, "cpus")
    assert sum(compiled for compiled, _, _ in answers) == 4


def test_who_waits_for_a_slow_compilation_leaves_it_together_with_the_one_that_compiled(tmp_path):
    """So a time limit of a collective that follows does not run out: two kernels take 2 s, the ends lie together."""
    (answers,) = started(tmp_path, 1, "slow")
    assert sum(compiled for compiled, _, _ in answers) == 2
    ends = [end for _, _, end in answers]
    assert max(ends) - min(ends) < 0.8
