"""Case B54: importing hpcdist and asking for help work where MPI aborts and CuPy is broken, and load nothing heavy."""

import os
import subprocess
import sys

import pytest

import hpcdist

HEAVY = ("mpi4py", "numba", "h5py", "cupy")
POISON = """
import os, sys

class Poison:
    def find_spec(self, name, path=None, target=None):
        if name == "mpi4py.MPI":
            os.abort()
        if name == "cupy":
            raise RuntimeError("this CuPy is broken")

sys.meta_path.insert(0, Poison())
"""


@pytest.fixture
def poisoned(tmp_path):
    """Run ``python ARGS`` where MPI aborts the process and CuPy raises."""
    (tmp_path / "sitecustomize.py").write_text(POISON)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_the_poison_works(poisoned):
    assert poisoned("-c", "from mpi4py import MPI").returncode == -6
    assert "broken" in poisoned("-c", "import cupy").stderr


def test_import_loads_nothing_heavy(poisoned):
    done = poisoned("-c", f"import sys, hpcdist; print([name for name in {HEAVY} if name in sys.modules])")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("run", "--help"), ("launch", "--help"), ("bench", "--help"), ("warmup", "--help")],
)
def test_help_loads_nothing_heavy(poisoned, arguments):
    report = f"""
import atexit, sys
atexit.register(lambda: print("heavy:", [name for name in {HEAVY} if name in sys.modules]))
import hpcdist.cli
sys.exit(hpcdist.cli.main({list(arguments)!r}))
"""
    done = poisoned("-c", report)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert "hpcdist" in done.stdout


RANK = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
STEP = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
WORKER = "from hpcdist.backends.parent import WORKER; multiprocessing.current_process().name = WORKER + '0'"


@pytest.mark.parametrize(
    ("variables", "before", "expected"),
    [
        ({}, "", False),
        (RANK, "", True),
        (STEP | {"SLURM_STEP_ID": "0"}, "", True),
        (STEP | {"SLURM_STEP_ID": "4294967291"}, "", False),
        (
            RANK,
            f"import multiprocessing; {WORKER}; [sys.modules.pop(m) for m in [*sys.modules] if 'hpcdist' in m]",
            False,
        ),
    ],
    ids=["no launcher", "mpirun", "srun", "batch script", "worker of a rank"],
)
def test_only_ranks_listen_to_sys_exit(monkeypatch, variables, before, expected):
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if before:
        monkeypatch.delenv("OMPI_COMM_WORLD_RANK")
        before += f"; import os; os.environ.update({variables!r})"
    code = f"import sys; {before}\nbefore = sys.exit; import hpcdist; print(sys.exit is not before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


def test_module_is_command(poisoned):
    done = poisoned("-m", "hpcdist", "--version")
    assert (done.returncode, done.stdout) == (0, f"hpcdist {hpcdist.__version__}\n")


def test_job_of_one_process_runs_without_mpi(poisoned, tmp_path):
    (tmp_path / "job.py").write_text(
        "import hpcdist\ncomm = hpcdist.init()\ncomm.barrier()\nprint(comm.rank, comm.size)\n"
    )
    done = poisoned("-m", "hpcdist", "run", "job.py")
    assert (done.returncode, done.stdout) == (0, "0 1\n"), done.stderr


def test_public_names_are_frozen():
    assert sorted(hpcdist.__all__) == [
        "Tensor",
        "__version__",
        "autograd",
        "backends",
        "checkpoint",
        "comm",
        "data",
        "dtensor",
        "elastic",
        "fft",
        "init",
        "init_device_mesh",
        "manual_seed",
        "nn",
        "no_grad",
        "optim",
        "parallel",
        "tensor",
        "train",
    ]


@pytest.mark.parametrize("name", hpcdist.__all__)
def test_public_name_resolves(name):
    assert getattr(hpcdist, name) is not None
    assert name in dir(hpcdist)


@pytest.mark.parametrize("module", [hpcdist.autograd.functions, hpcdist.autograd.arrangement])
def test_functions_are_to_be_had_from_the_top(module):
    for name in module.__all__:
        assert getattr(hpcdist, name) is getattr(module, name)
        assert name in dir(hpcdist)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hpcdist.nonsense  # noqa: B018
