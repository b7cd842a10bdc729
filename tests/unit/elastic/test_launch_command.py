"""Which options and variables the ranks are started with."""

import sys
from pathlib import Path

import pytest

from hpcdist.backends.mpi import Launcher
from hpcdist.elastic.command import Site, compose
from hpcdist.elastic.hosts import Host
from hpcdist.elastic.job import Job
from hpcdist.errors import LaunchError

OPEN_MPI = Launcher(path=Path("/x/mpirun"), family="openmpi", version="5.0.11")
MPICH = Launcher(path=Path("/x/mpiexec"), family="mpich", version="5.0.2")
OPEN_MPI_4 = Launcher(path=Path("/x/mpirun"), family="openmpi", version="4.1.4")
JOB = Job("script", "job.py", ("--steps", "3"))
RANK = [sys.executable, "-P", "-m", "hpcdist", "run", "job.py", "--steps", "3"]


def site(variables=(), **changes):
    return Site(**{"variables": dict(variables), "cores": 4, "slots": 4, **changes})


def test_open_mpi_on_one_node():
    command = compose(OPEN_MPI, JOB, 2, site())
    options = ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--bind-to", "none"]
    assert command.argv == ["/x/mpirun", "-n", "2", *options, *RANK]
    assert command.notes == []


def test_files_of_mpirun_lie_in_the_folder_of_the_job():
    """Else they would be named by a process number, and stop a later mpirun of that number if this one is killed."""
    name = "PRTE_MCA_prte_tmpdir_base"
    assert compose(OPEN_MPI, JOB, 2, site(folder="/tmp/job")).variables[name] == "/tmp/job"
    assert compose(OPEN_MPI, JOB, 2, site({name: "/scratch"}, folder="/tmp/job")).variables[name] == "/scratch"
    assert name not in compose(OPEN_MPI, JOB, 2, site(hostfile=Path("hosts"), folder="/tmp/job")).variables


def test_open_mpi_4_calls_shared_memory_by_another_name():
    assert "self,vader,tcp" in compose(OPEN_MPI_4, JOB, 2, site()).argv


def test_mpich_needs_no_options():
    assert compose(MPICH, JOB, 9, site(root=True)).argv == ["/x/mpiexec", "-n", "9", *RANK]


def test_users_mca_variables_win():
    variables = {"OMPI_MCA_pml": "ucx", "PRTE_MCA_hwloc_default_binding_policy": "core"}
    argv = compose(OPEN_MPI, JOB, 2, site(variables)).argv
    assert "pml" not in argv
    assert "--bind-to" not in argv
    assert "btl" in argv


def test_root_is_allowed_and_said():
    command = compose(OPEN_MPI, JOB, 2, site(root=True))
    assert command.variables["OMPI_ALLOW_RUN_AS_ROOT"] == command.variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert command.notes == ["running as root: OMPI_ALLOW_RUN_AS_ROOT set"]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert compose(OPEN_MPI, JOB, 2, site(allowed, root=True)).notes == []


@pytest.mark.parametrize(
    ("num_ranks", "changes", "needed"),
    [
        (4, {}, False),
        (5, {}, True),
        (5, {"hostfile": Path("h"), "hosts": (Host("a", 2), Host("b", 2))}, True),
        (4, {"hostfile": Path("h"), "hosts": (Host("a", 2), Host("b", 2))}, False),
        (99, {"hostfile": Path("h"), "hosts": (Host("a", 2), Host("b"))}, False),
    ],
)
def test_oversubscribe_only_where_needed(num_ranks, changes, needed):
    command = compose(OPEN_MPI, JOB, num_ranks, site(**changes))
    assert ("--oversubscribe" in command.argv) is needed
    assert any("--oversubscribe" in note for note in command.notes) is needed


@pytest.mark.parametrize("launcher", [OPEN_MPI, MPICH])
@pytest.mark.parametrize(("num_ranks", "threads"), [(1, "4"), (2, "2"), (3, "1"), (5, "1")])
def test_threads_are_cores_over_ranks(launcher, num_ranks, threads):
    variables = compose(launcher, JOB, num_ranks, site()).variables
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    assert [variables[name] for name in names] == [threads] * 4


def test_other_nodes_get_the_users_variables_and_count_their_own_threads():
    command = compose(
        OPEN_MPI,
        JOB,
        8,
        site(
            {"NUMBA_NUM_THREADS": "3", "PYTHONPATH": "/p", "HOME": "/h", "MPI4PY_LIBMPI": "/l"},
            hostfile=Path("h"),
            hosts=(Host("a"),),
        ),
    )
    assert command.argv[:5] == ["/x/mpirun", "-n", "8", "--hostfile", "h"]
    exported = [command.argv[i + 1] for i, word in enumerate(command.argv) if word == "-x"]
    assert exported == ["MPI4PY_LIBMPI", "NUMBA_NUM_THREADS", "PYTHONPATH"]
    assert "OMP_NUM_THREADS" not in command.variables
    assert "--mca" not in command.argv


def test_allocation_of_several_nodes_keeps_its_network():
    assert "--mca" not in compose(OPEN_MPI, JOB, 8, site({"SLURM_JOB_NUM_NODES": "2"})).argv
    assert "--mca" in compose(OPEN_MPI, JOB, 2, site({"SLURM_JOB_NUM_NODES": "1"})).argv


def test_mpich_host_file():
    argv = compose(MPICH, JOB, 2, site(hostfile=Path("h"), hosts=(Host("a"),))).argv
    assert argv[3:5] == ["-f", "h"]


def test_module_and_program():
    assert compose(MPICH, Job("module", "a.b", ("c",)), 1, site()).argv[-3:] == ["-m", "a.b", "c"]
    assert compose(MPICH, Job("program", "date"), 1, site()).argv[-1:] == ["date"]


@pytest.mark.parametrize("launcher", [OPEN_MPI, MPICH])
def test_an_argument_that_would_start_another_program_is_refused(launcher):
    with pytest.raises(LaunchError, match=r"(?s)an argument that mpi.* keeps for itself.*':'"):
        compose(launcher, Job("script", "job.py", ("a", ":", "echo")), 2, site())
    assert compose(launcher, Job("script", "job.py", ("a:b", "::")), 2, site()).argv[-2:] == ["a:b", "::"]
