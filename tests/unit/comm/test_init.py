"""hd.init without MPI: one local rank, the default, and what it says when ranks find themselves alone."""

import subprocess
import sys

import numpy as np
import pytest

import hpcdist.comm.init as module
from hpcdist.backends import cpu
from hpcdist.comm.init import get_default, init
from hpcdist.comm.launched import launched
from hpcdist.comm.local import LocalCommunicator, solo
from hpcdist.comm.mpi.world import check_company
from hpcdist.errors import LaunchError

STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_PROCID": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4"}
BATCH = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}


@pytest.fixture
def threads(monkeypatch):
    """A fresh default and no launcher; the calls that would set thread counts."""
    calls = []
    monkeypatch.setattr(module, "_default", None)
    monkeypatch.setattr(module, "launched", lambda _: None)
    monkeypatch.setattr(module, "runs_already", lambda: False)
    monkeypatch.setattr(cpu, "set_threads", lambda n, local_size: calls.append((n, local_size)))
    return calls


def test_without_a_launcher_it_is_one_rank(threads):
    comm = init()
    assert isinstance(comm, LocalCommunicator)
    assert (comm.rank, comm.size, comm.timeout_s, comm.reproducible) == (0, 1, 1800.0, False)
    assert comm.all_reduce(np.arange(3)).tolist() == [0, 1, 2]
    assert threads == [(None, 1)]


def test_second_call_returns_the_same(threads):
    first = init(timeout_s=60, reproducible=True)
    assert init() is first
    assert get_default() is first
    assert (first.timeout_s, first.reproducible) == (60, True)
    assert init(timeout_s=61) is not first
    assert get_default().timeout_s == 61


def test_default_is_made_on_first_use(threads):
    assert get_default() is get_default()


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, None), ({"reproducible": True}, 1), ({"reproducible": True, "threads": 3}, 3), ({"threads": 2}, 2)],
)
def test_threads(threads, options, expected):
    init(**options)
    assert threads == [(expected, 1)]


def test_host_keeps_its_threads_unless_asked(threads):
    init(solo())
    assert threads == []
    init(solo(), threads=2)
    assert threads == [(2, 1)]


def test_one_of_our_communicators_is_duplicated(threads):
    host = solo(timeout_s=5)
    comm = init(host, timeout_s=7, reproducible=True)
    assert comm is not host
    assert (comm.timeout_s, comm.reproducible, host.timeout_s, host.reproducible) == (7, True, 5, False)


@pytest.mark.parametrize("variables", [STEP, OPEN_MPI, HYDRA], ids=["srun", "mpirun", "mpiexec"])
def test_ranks_that_are_alone_b53(variables):
    """Case B53: both numbers and the likely cures."""
    with pytest.raises(LaunchError) as caught:
        check_company(1, launched(variables), "Open MPI v5.0, package: x\n")
    message = str(caught.value)
    assert "each process is alone" in message
    assert "a world of 1 rank, from Open MPI v5.0\n" in message
    assert "4 ranks: " in message
    assert "rank 2 of 4" in message
    for cure in ("--mpi=pmix", "--mpi=pmi2", "mpirun that belongs to", "container", "HPCDIST_ALLOW_SINGLETONS=1"):
        assert cure in message


@pytest.mark.parametrize(
    ("size", "variables"),
    [(1, BATCH), (1, {}), (1, {**STEP, "SLURM_STEP_NUM_TASKS": "1"}), (4, STEP), (4, {**STEP, **OPEN_MPI}), (2, {})],
    ids=["batch script", "nothing", "single task", "srun", "mpirun in a job", "host started MPI"],
)
def test_company_counter_cases_b53(size, variables):
    check_company(size, launched(variables), "MPI")


def test_alone_without_a_launcher_loads_no_mpi4py():
    code = (
        "import sys, hpcdist as hd, numpy as np; comm = hd.init();"
        "assert comm.all_reduce(np.ones(2)).tolist() == [1, 1];"
        "assert not {'mpi4py', 'h5py', 'cupy'} & set(sys.modules)"
    )
    variables = {"PATH": "/usr/bin", "HOME": "/tmp"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
