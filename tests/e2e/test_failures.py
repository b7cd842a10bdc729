"""Case B06: a rank that ends alone ends all, with one traceback and a code that says so; and case B53: ranks alone."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hpcdist.backends import mpi
from hpcdist.elastic.command import Site, compose
from hpcdist.elastic.job import Job

LIMIT_S = 15
KILLED = 9
"""MPICH's launcher may return this, of the ranks that it ends because one has failed."""
SCRIPT = """
import os, sys, threading, time
import numpy as np
import hpcdist as hd

mode = sys.argv[1]
if mode == "absent" and os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    time.sleep(60)

comm = hd.init(timeout_s=float(os.environ.get("LIMIT", 600)))

def boom():
    raise ValueError("boom-41")

def tell(kind, error, trace):
    print("told by the program:", error, file=sys.stderr)

def leave(code):
    with open(os.devnull):
        sys.exit(code)

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
    time.sleep(1)
if comm.rank == 1:
    if mode == "raise":
        boom()
    if mode == "told":
        sys.excepthook = tell
        boom()
    if mode == "closed":
        sys.stdout.close()
        sys.stderr.close()
        boom()
    if mode in ("child fails", "child leaves"):
        child = os.fork()
        if child == 0:
            boom() if mode == "child fails" else sys.exit(0)
        print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
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
    if mode == "at once":
        os._exit(5)
    if mode == "builtin":
        exit(3)
    if mode == "message":
        sys.exit("sorry-7")
    if mode in ("early", "message lost"):
        sys.exit(0)
if mode == "message lost" and comm.rank == 0:
    comm.recv(np.ones(1), 1)
if mode == "last word":
    for _ in range(40):
        comm.barrier()
    time.sleep(1.2 if comm.rank == 0 else 0)
if mode != "slow":
    comm.ireduce(np.ones(1), 2).wait() if mode == "last word" else comm.barrier()
print("the end", flush=True)
"""
MAIN = """
import sys
from sys import exit as leave

if sys.argv[1] != "late":
    import hpcdist

def main():
    import hpcdist
    comm = hpcdist.init(timeout_s=600)
    if comm.rank == 1:
        return 3
    comm.barrier()

if __name__ == "__main__":
    if sys.argv[1] == "from":
        leave(main())
    sys.exit(main())
"""
HOST = """
import sys
from mpi4py import MPI
import hpcdist

comm = hpcdist.init(MPI.COMM_WORLD, timeout_s=1, abort_on_error=sys.argv[1] == "abort")
if comm.rank == 1:
    raise ValueError("boom-41")
comm.barrier()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("failures")
    for name, text in (("script", SCRIPT), ("main", MAIN), ("host", HOST)):
        (path / f"{name}.py").write_text(text)
    return path


@pytest.fixture(scope="module")
def mpirun():
    command = compose(mpi.find(), Job("program", "python"), 3, Site(variables={}, cores=1, slots=1))
    return command.argv[:-1]


LAUNCH = ["-m", "hpcdist", "launch", "-n", "3"]
WAYS = {"python": [], "python -m mpi4py": ["-m", "mpi4py"], "hpcdist launch": LAUNCH}
every_way = pytest.mark.parametrize("start", WAYS, indirect=True)
by_python_and_launch = pytest.mark.parametrize("start", ["python", "hpcdist launch"], indirect=True)


@pytest.fixture
def start(request, mpirun, folder):
    """Run a script on three ranks, where nothing else is said by mpirun and python; return exit code, output, seconds.

    Ranks are late after half a second.
    """
    name = getattr(request, "param", "python")

    def run(mode, script="script", **variables):
        way, variables = WAYS[name], {"HPCDIST_LATE_S": "0.5", **variables}
        first = [] if way is LAUNCH else mpirun
        begin = time.monotonic()
        code, output = finish([*first, sys.executable, *way, str(folder / f"{script}.py"), mode], variables)
        lines = [line for line in output.splitlines(True) if not line.startswith("hpcdist launch: ")]
        return code, "".join(lines), time.monotonic() - begin

    return run


def finish(command, variables):
    """Run a command; mpirun keeps its files in a folder of its own, not where a killed one may have left some."""
    with tempfile.TemporaryDirectory(prefix="mpirun-", ignore_cleanup_errors=True) as files:
        return _finish(command, {"PRTE_MCA_prte_tmpdir_base": files, **variables})


def _finish(command, variables):
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


def is_told_once(output, what="ValueError: boom-41"):
    return output.count("Traceback (most recent call last)") == 1 == output.count(what)


@every_way
def test_exception_of_one_rank_ends_all(start):
    code, output, _ = start("raise")
    assert code == 1
    assert is_told_once(output)
    assert "rank 1 of 3" in output
    assert "script.py" in output
    assert "in boom" in output
    assert "the end" not in output


@pytest.mark.parametrize("mode", ["thread", "closed"])
def test_exception_in_a_thread_and_without_streams(start, mode):
    code, output, _ = start(mode)
    assert code == 1
    assert is_told_once(output)
    assert "rank 1 of 3" in output


def test_hook_of_the_program_tells_and_all_end(start):
    code, output, _ = start("told")
    assert code == 1
    assert output.count("told by the program: boom-41\n") == 1
    assert "rank 1 of 3" in output
    assert "Traceback" not in output
    assert "has left it" not in output


@by_python_and_launch
def test_interrupt_of_one_rank_ends_all(start):
    code, output, _ = start("interrupt")
    assert code == 130
    assert is_told_once(output, "raise KeyboardInterrupt")
    assert "rank 1 of 3" in output


@every_way
def test_exit_of_one_rank_ends_all(start):
    code, output, _ = start("exit 3")
    assert code == 3
    assert "rank 1 of 3" in output
    assert "sys.exit(3)" in output
    assert "the end" not in output


@pytest.mark.parametrize(("mode", "status", "text"), [("builtin", 3, "sys.exit(3)"), ("message", 1, "sorry-7")])
def test_other_exits_of_one_rank_end_all(start, mode, status, text):
    code, output, _ = start(mode)
    assert code == status
    assert "rank 1 of 3" in output
    assert text in output


@pytest.mark.parametrize("start", ["python -m mpi4py", "hpcdist launch"], indirect=True)
def test_exit_that_no_hook_sees_ends_all(start):
    code, output, _ = start("bare")
    assert code == 3
    assert "rank 1 of 3" in output
    assert "the end" not in output


def test_exit_that_nobody_sees_ends_all(start):
    """Whoever waits for the rank finds out that it has left; its code Python keeps to itself."""
    code, output, seconds = start("bare")
    assert code == 1
    assert output.count("Traceback (most recent call last)") == 1
    assert "DistNetworkError: barrier on rank 0 of 3 of group 'world': rank 1 of the job has left it" in output
    assert "it left by SystemExit, with an exit code that Python keeps to itself" in output
    assert "the end" not in output
    assert seconds < LIMIT_S


def test_exit_with_what_main_returns(start):
    code, output, _ = start("early", script="main")
    assert code == 3
    assert "rank 1 of 3" in output


@by_python_and_launch
@pytest.mark.parametrize("mode", ["from", "late"])
def test_exit_that_was_looked_up_before(start, request, mode):
    code, output, _ = start(mode, script="main")
    assert code == (1 if request.node.callspec.params["start"] == "python" else 3)
    assert "rank 1 of" in output


def test_rank_that_vanishes_ends_all(start):
    code, output, _ = start("at once")
    assert code in (5, KILLED)
    assert "the end" not in output


def test_rank_that_never_comes_to_mpi(start):
    code, output, seconds = start("absent", LIMIT="2")
    assert code in (1, KILLED)
    assert "rank 0 of 3: MPI_Init, in hd.init(): has waited for" in output
    assert "of 3: MPI_Init: not all ranks have come within 2 s" in output
    assert seconds < LIMIT_S


@pytest.mark.parametrize(("mode", "status"), [("child fails", 1), ("child leaves", 0)])
def test_child_that_a_rank_forks_is_no_rank(start, mode, status):
    code, output, _ = start(mode)
    assert code == 0
    assert output.count("the end\n") == 3
    assert f"child: {status}\n" in output
    assert is_told_once(output) == (status == 1)
    assert "rank 1 of 3" not in output


@by_python_and_launch
@pytest.mark.parametrize("mode", ["early", "message lost"])
def test_rank_that_ends_well_before_others_are_done_with_it(start, mode):
    code, output, _ = start(mode)
    assert code in (1, KILLED)
    assert "of the job has left it without taking part" in output
    assert "rank 1 of the job" in output
    assert "script.py" in output


@pytest.mark.usefixtures("whole_lines")
def test_rank_that_has_done_its_part_may_end(start):
    """The root of a reduction still waits for a slow rank when another one has left: that is no error."""
    code, output, _ = start("last word")
    assert (code, output.count("the end\n")) == (0, 3)
    assert "reduce of float64 (1,) on rank 2 of 3 of group 'world': has waited" in output
    assert "has left" not in output


def test_errors_on_a_communicator_of_the_host_propagate(start):
    code, output, seconds = start("propagate", script="host")
    assert code == 1
    assert output.count("ValueError: boom-41") == 1
    assert "not done within 1 s" in output
    assert seconds > 1


def test_errors_on_a_communicator_of_the_host_end_the_job_if_it_wants_so(start):
    code, output, _ = start("abort", script="host")
    assert code == 1
    assert is_told_once(output)
    assert "rank 1 of 3" in output
    assert "DistTimeoutError" not in output


def test_agreed_error_is_told_once(start):
    code, output, _ = start("agreed")
    assert code == 1
    assert is_told_once(output)
    assert "on rank 1 of 3" in output


@pytest.mark.usefixtures("whole_lines")
@every_way
def test_normal_end_is_quiet(start):
    code, output, _ = start("caught")
    assert (code, output) == (0, "the end\n" * 3)


@pytest.mark.usefixtures("whole_lines")
def test_normal_end_waits_for_all_and_says_so(start):
    code, output, seconds = start("slow")
    assert (code, output.count("the end\n")) == (0, 3)
    assert "has come to the end of the program, and waited for 0." in output
    assert seconds > 1


@by_python_and_launch
def test_exit_0_of_all_ranks_is_quiet(start):
    code, output, _ = start("exit 0")
    assert (code, output) == (0, "")


def test_finalize_of_the_program_is_no_failure(start):
    code, output, _ = start("finalize")
    assert (code, output) == (0, "")


@by_python_and_launch
def test_all_ranks_leave_with_an_error(start):
    code, output, _ = start("exit 4")
    assert code == 4
    assert "Traceback" not in output


def test_rank_that_leaves_too_early_is_noticed_at_the_limit(start):
    code, output, seconds = start("early", LIMIT="1", HPCDIST_LATE_S="10")
    assert code == 1
    assert "DistTimeoutError: barrier on rank" in output
    assert "not done within 1 s" in output
    assert seconds > 1


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
