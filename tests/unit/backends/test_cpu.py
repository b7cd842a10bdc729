"""Case B50: threads a rank come from the affinity mask and the ranks of the node; the user's values are kept."""

import json
import math
import os
import subprocess
import sys
import threading

import pytest

from hpcdist.backends import cpu

NAMES = cpu.THREAD_VARIABLES


@pytest.fixture
def environment(monkeypatch):
    """Give the variables of threads back afterwards, and the count that kernels use."""
    for name in NAMES:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(cpu, "_threads", None)
    monkeypatch.setattr(cpu.numba, "max_threads", lambda: None)
    monkeypatch.setattr(cpu, "_set_blas", lambda n: None)
    return monkeypatch


@pytest.mark.parametrize(
    ("ranks", "variables", "cores", "threads"),
    [
        (2, {}, 4, 2),
        (1, {}, 4, 4),
        (3, {}, 4, 1),
        (5, {}, 4, 1),
        (4, {}, 1, 1),
        (2, {"OMP_NUM_THREADS": "1"}, 4, 1),
        (2, {"OMP_NUM_THREADS": "8"}, 4, 8),
        (2, {"OMP_NUM_THREADS": "3,2"}, 4, 3),
        (2, {"OMP_NUM_THREADS": ""}, 4, 2),
        (2, {"OMP_NUM_THREADS": "0"}, 4, 2),
        (2, {"OMP_NUM_THREADS": "many"}, 4, 2),
        (2, {"NUMBA_NUM_THREADS": "3"}, 4, 2),
    ],
)
def test_threads_per_rank(ranks, variables, cores, threads):
    assert cpu.threads_per_rank(ranks, variables, cores) == threads


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["2", "2", "2", "2"]),
        ({"OMP_NUM_THREADS": "1"}, ["1", "1", "1", "1"]),
        ({"NUMBA_NUM_THREADS": "3"}, ["2", "2", "2", "3"]),
        ({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "4"}, ["1", "4", "1", "1"]),
        ({"OMP_NUM_THREADS": "4,2"}, ["4,2", "4", "4", "4"]),
        ({"MKL_NUM_THREADS": "x"}, ["2", "2", "2", "2"]),
    ],
)
def test_thread_variables(variables, expected):
    assert list(cpu.thread_variables(2, variables, 4).values()) == expected


def masks(own, parents):
    return lambda pid: set(range(own if pid == 0 else parents))


@pytest.mark.parametrize(
    ("own", "parents", "ranks", "shared"),
    [
        (4, 4, 2, 4),  # taskset before mpirun --bind-to none: all share one mask
        (1, 4, 4, 4),  # each rank bound to a core of its own
        (8, 16, 4, 16),  # two ranks a socket
        (2, 64, 4, 8),  # srun --cpus-per-task=2
        (4, 2, 2, 4),  # a parent that was bound tighter says nothing
        (1, 64, 1, 1),
    ],
)
def test_shared_cores(monkeypatch, own, parents, ranks, shared):
    monkeypatch.setattr(os, "sched_getaffinity", masks(own, parents))
    monkeypatch.setattr(cpu, "_quota", lambda: math.inf)
    assert cpu.shared_cores(ranks) == shared


def test_quota_of_a_container_limits_the_count(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", masks(16, 16))
    monkeypatch.setattr(cpu, "_CGROUPS", tmp_path)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpu.affinity() == cpu.shared_cores(4) == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu.affinity() == 16


def test_hardware_threads_of_a_core_count_once(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", masks(4, 4))
    monkeypatch.setattr(cpu, "_CORES", tmp_path)
    assert cpu.physical_cores() == 4
    for core in range(4):
        (tmp_path / f"cpu{core}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}/topology/thread_siblings_list").write_text(f"{core % 2},{core % 2 + 2}\n")
    assert cpu.physical_cores() == 2


def test_set_threads_fills_in_every_variable(environment):
    assert cpu.set_threads(3) == 3
    assert [os.environ[name] for name in NAMES] == ["3"] * 4
    assert cpu.num_threads() == 3


def test_set_threads_keeps_what_the_user_set(environment):
    environment.setenv("NUMBA_NUM_THREADS", "5")
    environment.setattr(cpu, "shared_cores", lambda local_size: 4)
    assert cpu.set_threads(None, local_size=2) == 5
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_num_threads_is_the_same_in_every_thread(environment):
    cpu.set_threads(3)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(cpu.num_threads()))
    thread.start()
    thread.join()
    assert seen == [3]


@pytest.mark.parametrize("n", [0, -2, 2.5, "2", True])
def test_no_threads_is_an_error(n):
    with pytest.raises(ValueError, match="number of threads"):
        cpu.set_threads(n)


def test_capability_is_one_of_torchs():
    assert cpu.get_cpu_capability() in ("AVX512", "AVX2", "DEFAULT")


REAL = """
import json, logging, os, sys, threading
os.sched_getaffinity = lambda pid: set(range({cores}))
logging.basicConfig(stream=sys.stderr)
from hpcdist.backends import cpu
{first}
import numba, numpy, threadpoolctl
{then}
seen = [numba.get_num_threads()]
thread = threading.Thread(target=lambda: seen.append({in_thread}))
thread.start(); thread.join()
blas = [library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]
print(json.dumps([seen, blas[0]]))
"""


def real(cores, first, then="", in_thread="numba.get_num_threads()", **variables):
    """Return numba's threads in the main and another thread, and BLAS's, in a process with real libraries."""
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", REAL.format(cores=cores, first=first, then=then, in_thread=in_thread)],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [*json.loads(done.stdout), done.stderr]


@pytest.mark.parametrize(
    ("cores", "ranks", "variables", "numba", "blas"),
    [
        (4, 2, {}, 2, 2),
        (4, 2, {"OMP_NUM_THREADS": "1"}, 1, 1),
        (4, 2, {"NUMBA_NUM_THREADS": "3"}, 3, 2),
        (4, 5, {}, 1, 1),
        (1, 2, {}, 1, 1),
    ],
)
def test_real_libraries_obey(cores, ranks, variables, numba, blas):
    assert real(cores, f"cpu.set_threads(None, {ranks})", **variables)[:2] == [[numba, numba], blas]


def test_late_change_works_up_to_what_was_launched():
    seen, blas, _ = real(4, "cpu.set_threads(2)", "numba.get_num_threads(); cpu.set_threads(1)", "cpu.num_threads()")
    assert (seen, blas) == ([1, 1], 1)


def test_late_increase_is_a_clear_message():
    late = "numba.get_num_threads(); cpu.set_threads(4); numba.njit(lambda x: x)(1)"
    seen, _, messages = real(4, "cpu.set_threads(2)", late, "cpu.num_threads()")
    assert seen == [2, 2]
    assert "numba was imported before" in messages
    assert "4 threads asked for" in messages
