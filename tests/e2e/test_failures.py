"""Case B06: a rank that ends alone ends all, with one traceback and a code that says so; and case B53: ranks alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcdist.backends import mpi
from hpcdist.elastic.command import Site, compose
from hpcdist.elastic.job import Job

LIMIT_S = 15
SCRIPT = """
import os, sys, threading, time
import numpy as np
import hpcdist as hd

comm = hd.init(timeout_s=float(os.environ.get("LIMIT", 600)))

def boom():
    raise ValueError("boom-41")

def leave(code):
    with open(os.devnull):
        sys.exit(code)

mode = sys.argv[1]
if mode == "agreed":
    with comm.agreed():
        if comm.rank == 1:
            boom()
if mode == "caught":
    for end in (lambda: leave(3), boom):
        try:
            end()
        except (SystemExit, ValueError):
            pass
if mode == "exit 0":
    leave(0)
if mode == "exit 4":
    leave(4)
if mode == "finalize":
    from mpi4py import MPI
    work = comm.iall_reduce(np.ones(1000))
    comm.watch(work)
    work.wait()
    MPI.Finalize()
    sys.exit(0)
if mode == "slow" and comm.rank == 0:
    time.sleep(2)
if comm.rank == 1:
    if mode == "raise":
        boom()
    if mode == "thread":
        threading.Thread(target=boom).start()
        time.sleep(60)
    if mode == "exit 3":
        try:
            leave(3)
        finally:
            time.sleep(0.01)
    if mode == "interrupt":
        raise KeyboardInterrupt
    if mode == "bare":
        raise SystemExit(3)
    if mode == "builtin":
        exit(3)
    if mode == "message":
        sys.exit("sorry-7")
    if mode == "early":
        sys.exit(0)
if mode != "slow":
    comm.barrier()
print("the end", flush=True)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("failures") / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def mpirun():
    command = compose(mpi.find(), Job("program", "python"), 3, Site(variables={}, cores=1, slots=1))
    return command.argv[:-1]


@pytest.fixture(params=[[], ["-m", "mpi4py"]], ids=["python", "python -m mpi4py"])
def start(request, mpirun, script):
    """Run the script on three ranks; return exit code, output and seconds."""

    def run(mode, **variables):
        start = time.monotonic()
        code, output = finish([*mpirun, sys.executable, *request.param, str(script), mode], variables)
        return code, output, time.monotonic() - start

    return run


def finish(command, variables):
    as_root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    child = subprocess.Popen(
        command,
        env={**os.environ, **as_root, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        child.terminate()
        output, _ = child.communicate(timeout=LIMIT_S)
        pytest.fail(f"hangs:\n{output}")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    return child.returncode, output


@pytest.mark.parametrize("mode", ["raise", "thread"])
def test_exception_of_one_rank_ends_all(start, mode):
    code, output, _ = start(mode)
    assert code == 1
    assert output.count("Traceback (most recent call last)") == 1
    assert output.count("ValueError: boom-41") == 1
    assert "rank 1 of 3" in output
    assert "script.py" in output
    assert "in boom" in output
    assert "the end" not in output


def test_interrupt_of_one_rank_ends_all(start):
    code, output, _ = start("interrupt")
    assert code == 130
    assert output.count("Traceback (most recent call last)") == 1
    assert "KeyboardInterrupt" in output
    assert "rank 1 of 3" in output


@pytest.mark.parametrize(
    ("mode", "status", "text"),
    [("exit 3", 3, "sys.exit(3)"), ("builtin", 3, "sys.exit(3)"), ("message", 1, "sorry-7")],
)
def test_exit_of_one_rank_ends_all(start, mode, status, text):
    code, output, _ = start(mode)
    assert code == status
    assert "rank 1 of 3" in output
    assert text in output
    assert "the end" not in output


@pytest.mark.parametrize("start", [["-m", "mpi4py"]], indirect=True, ids=["python -m mpi4py"])
def test_exit_that_only_mpi4py_sees_ends_all(start):
    code, output, _ = start("bare")
    assert code == 3
    assert "rank 1 of 3" in output
    assert "the end" not in output


def test_agreed_error_is_told_once(start):
    code, output, _ = start("agreed")
    assert code == 1
    assert output.count("Traceback (most recent call last)") == 1
    assert output.count("ValueError: boom-41") == 1
    assert "on rank 1 of 3" in output


@pytest.mark.parametrize("mode", ["ok", "caught", "slow"])
def test_normal_end_waits_for_all_and_is_quiet(start, mode):
    code, output, seconds = start(mode)
    assert (code, output) == (0, "the end\n" * 3)
    assert mode != "slow" or seconds > 2


@pytest.mark.parametrize("mode", ["exit 0", "finalize"])
def test_ends_that_are_no_failures(start, mode):
    code, output, _ = start(mode)
    assert (code, output) == (0, "")


def test_all_ranks_leave_with_an_error(start):
    code, output, _ = start("exit 4")
    assert code == 4
    assert "Traceback" not in output


def test_rank_that_leaves_too_early_is_noticed_at_the_limit(start):
    code, output, seconds = start("early", LIMIT="2")
    assert code == 1
    assert "DistTimeoutError: barrier on rank" in output
    assert "not done within 2 s" in output
    assert seconds > 2


def test_report_for_the_launcher(start, tmp_path):
    code, output, _ = start("raise", HPCDIST_ERROR_DIR=str(tmp_path))
    assert code == 1
    assert [path.name for path in tmp_path.glob("*.json")] == ["rank-1.json"]
    report = json.loads((tmp_path / "rank-1.json").read_text())
    assert (report["rank"], report["size"], report["exit_code"], report["signal"]) == (1, 3, 1, None)
    assert report["traceback"].endswith("ValueError: boom-41\n")
    assert abs(report["time"] - time.time()) < LIMIT_S
    assert "Traceback" not in output  # the launcher shows it


# ---- each process a world of its own
ALONE = "import hpcdist as hd; comm = hd.init(); open('result', 'w').write(str(comm.size))"
STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_PROCID": "2"}


@pytest.mark.parametrize(
    "variables",
    [STEP, {"PMI_RANK": "2", "PMI_SIZE": "4"}],
    ids=["srun without its PMI", "mpiexec of another MPI"],
)
def test_ranks_that_are_alone_b53(tmp_path, monkeypatch, variables):
    monkeypatch.chdir(tmp_path)
    code, output = finish([sys.executable, "-c", ALONE], variables)
    assert code != 0
    assert "LaunchError: MPI: each process is alone" in output
    assert "a world of 1 rank" in output
    assert "4 ranks" in output
    assert not Path("result").exists()
    code, output = finish([sys.executable, "-c", ALONE], {**variables, "HPCDIST_ALLOW_SINGLETONS": "1"})
    assert (code, output, Path("result").read_text()) == (0, "", "1")


@pytest.mark.parametrize(
    "variables",
    [{"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}],
    ids=["batch script", "single task"],
)
def test_counter_cases_b53(tmp_path, monkeypatch, variables):
    monkeypatch.chdir(tmp_path)
    code, output = finish([sys.executable, "-c", ALONE], variables)
    assert (code, output, Path("result").read_text()) == (0, "", "1")
