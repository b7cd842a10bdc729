"""Cores and threads: how many this process may use, and the one place where BLAS, OpenMP and numba are told.

Counts come from the affinity mask and the container's CPU quota, never from the machine.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from hpcdist.backends import numba
from hpcdist.errors import explain

__all__ = [
    "THREAD_VARIABLES",
    "affinity",
    "get_cpu_capability",
    "num_threads",
    "physical_cores",
    "set_threads",
    "shared_cores",
    "thread_variables",
    "threads_per_rank",
]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

_CGROUPS = Path("/sys/fs/cgroup")
_CORES = Path("/sys/devices/system/cpu")
_CAPABILITIES = {
    "AVX512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"},
    "AVX2": {"avx2", "fma"},
}
_log = logging.getLogger("hpcdist.backends")
_threads: int | None = None


def affinity() -> int:
    """Return the number of cores this process may use, at least 1."""
    return math.ceil(min(len(os.sched_getaffinity(0)), _quota()))


def physical_cores() -> int:
    """Return the number of cores this process may use, hardware threads of one core counted once."""
    return len({_siblings(core) for core in os.sched_getaffinity(0)})


def shared_cores(local_size: int) -> int:
    """Return the number of cores that the ``local_size`` ranks of this node share, as seen by one of them.

    Notes
    -----
    A rank whose mask is smaller than its parent's was bound by the launcher: such masks add up over the ranks.
    """
    mask = len(os.sched_getaffinity(0))
    try:
        given = len(os.sched_getaffinity(os.getppid()))
    except OSError:
        given = mask
    return math.ceil(min(max(mask, min(given, mask * local_size)), _quota()))


def threads_per_rank(local_size: int, variables: Mapping[str, str], cores: int) -> int:
    """Return how many threads each of the ranks on a node gets.

    Parameters
    ----------
    local_size : int
        Ranks that share the cores.
    variables : mapping
        The environment; a number in OMP_NUM_THREADS is the user's choice and is kept.
    cores : int
        Cores that the ranks may use together.
    """
    return _count(variables.get("OMP_NUM_THREADS", "")) or max(1, cores // local_size)


def thread_variables(local_size: int, variables: Mapping[str, str], cores: int) -> dict[str, str]:
    """Return what each variable that sets a thread count should be; those that the user set are kept."""
    default = str(threads_per_rank(local_size, variables, cores))
    given = {name: variables.get(name, "") for name in THREAD_VARIABLES}
    return {name: text if _count(text) else default for name, text in given.items()}


def num_threads() -> int:
    """Return how many threads a kernel may use: in constant time, and the same in every Python thread."""
    return _threads or set_threads(None)


def set_threads(n: int | None, local_size: int = 1) -> int:
    """Fix the number of threads of BLAS, OpenMP and numba here; return the number that kernels use.

    Parameters
    ----------
    n : int or None
        Threads a rank. None: what the user's variables say, else this rank's share of the cores.
    local_size : int
        Ranks on this node.

    Notes
    -----
    Libraries that are not loaded yet read the variables when they are; loaded ones are told. numba launches a
    fixed number of threads: asked for more later, kernels use what it launched, and a warning says so.

    Between kernels OpenMP's threads are to sleep: by default they spin for milliseconds, on the cores that the BLAS
    needs for the next product (a step of kernels and products on 2 cores took 76 ms, with sleep 26).
    """
    global _threads
    if n is not None and (isinstance(n, bool) or not hasattr(n, "__index__") or n < 1):
        raise ValueError(explain("set_threads: number of threads", got=n, expected="an integer >= 1, or None"))
    wanted = (
        thread_variables(local_size, os.environ, shared_cores(local_size))
        if n is None
        else dict.fromkeys(THREAD_VARIABLES, str(n))
    )
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    kernels = _set_numba(wanted.pop("NUMBA_NUM_THREADS"))
    os.environ.update(wanted)
    _set_blas(_count(wanted["OPENBLAS_NUM_THREADS"]))
    _threads = kernels
    return kernels


def get_cpu_capability() -> str:
    """Return the widest vector instructions of this CPU: ``"AVX512"``, ``"AVX2"`` or ``"DEFAULT"``."""
    try:
        found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    flags = set(found[1].split()) if found else set()
    return next((name for name, needed in _CAPABILITIES.items() if needed <= flags), "DEFAULT")


def _count(text: str) -> int:
    """Return the thread count that ``text`` begins with (OpenMP allows ``"4,2"``), 0 if there is none."""
    found = re.match(r"\s*(\d+)\s*(,|$)", text)
    return int(found[1]) if found else 0


def _set_numba(text: str) -> int:
    wanted, launched = _count(text), numba.max_threads()
    if launched is None:
        os.environ["NUMBA_NUM_THREADS"] = text
        return wanted
    if wanted > launched:
        _log.warning(
            explain(
                "set_threads: numba was imported before and launches fewer threads",
                got=f"{wanted} threads asked for",
                expected=f"at most {launched}, which kernels now use",
                do="call hpcdist.init(threads=...) before numba is imported, or set NUMBA_NUM_THREADS",
            )
        )
    return numba.set_threads(wanted)


def _set_blas(n: int) -> None:
    """Tell the BLAS libraries that are loaded."""
    if "numpy" in sys.modules:
        import threadpoolctl

        threadpoolctl.threadpool_limits(n, user_api="blas")


def _siblings(core: int) -> str:
    """Return a name for the physical core that hardware thread ``core`` belongs to."""
    try:
        return (_CORES / f"cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(core)


def _quota() -> float:
    """Return the CPU time a second that this process's control groups grant; infinite without a limit."""
    try:
        own = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    except OSError:
        own = None
    here = _CGROUPS / (own[1] if own else "")
    return min(map(_limit, (here, *here.parents[: len(here.parts) - len(_CGROUPS.parts)])))


def _limit(group: Path) -> float:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf
