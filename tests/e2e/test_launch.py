"""Jobs on real ranks: how they end, what is said, and that nothing is left behind (cases B06, B50, B53)."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

LIMIT_S = 15
JOB = """
import os, signal, sys, threading, time
import hpcdist

def work(comm, what):
    if comm.rank == 1:
        if what == "raise":
            raise ValueError("boom-41")
        if what == "thread":
            threading.Thread(target=work, args=(comm, "raise")).start()
        if what == "exit3":
            sys.exit(3)
        if what == "interrupt":
            raise KeyboardInterrupt
        if what in ("SIGKILL", "SIGSEGV"):
            os.kill(os.getpid(), getattr(signal, what))
    if what == "caught":
        try:
            raise ValueError("boom-41")
        except ValueError:
            pass
    if what == "exit0":
        sys.exit(0)
    comm.barrier()

comm = hpcdist.init()
comm.barrier()
work(comm, sys.argv[1])
"""


class Started:
    """A command whose processes can all be found by a mark in their environment."""

    def __init__(self, command, folder, **variables):
        self.mark = uuid.uuid4().hex
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "HPCDIST_TEST_MARK": self.mark, **variables},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self):
        """Wait for the end; return exit code, output, error output. Nothing may be left after that."""
        try:
            out, err = self.process.communicate(timeout=4 * LIMIT_S)
        finally:
            self.end()
        assert time.monotonic() - self.began < LIMIT_S
        return self.process.returncode, out, err

    def left(self):
        """Return the processes that run with the mark."""
        ids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [pid for pid in ids if self._is_ours(pid)]

    def _is_ours(self, pid):
        try:
            return self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def gone_within(self, seconds):
        limit = time.monotonic() + seconds
        while self.left() and time.monotonic() < limit:
            time.sleep(0.05)
        return not self.left()

    def end(self):
        if not self.gone_within(2):
            left = self.left()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"processes left behind: {left}")


def launch(folder, *arguments, **variables):
    return Started([sys.executable, "-m", "hpcdist", "launch", *arguments], folder, **variables)


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def by_cli(job, what):
    return launch(job.parent, "-n", "3", job.name, what)


@pytest.mark.parametrize(("what", "expected"), [("raise", 1), ("thread", 1), ("exit3", 3), ("exit0", 0), ("caught", 0)])
def test_failure_of_a_rank_ends_the_job(job, what, expected):
    code, _, err = by_cli(job, what).finish()
    assert code == expected
    assert err.count("ValueError: boom-41\n") == (what in ("raise", "thread")), err
    assert ("first failure: rank 1 of 3" in err) is (expected != 0)


@pytest.mark.parametrize(("what", "expected"), [("interrupt", 130), ("SIGKILL", 137), ("SIGSEGV", 139)])
def test_signals_of_a_rank_are_the_exit_code(job, what, expected):
    code, _, err = by_cli(job, what).finish()
    assert code == expected
    says = "KeyboardInterrupt" if what == "interrupt" else f"({what})"
    assert says in err[err.index("first failure") :].splitlines()[0]


def test_traceback_of_the_first_failure_is_last(job):
    _, _, err = by_cli(job, "raise").finish()
    assert err.splitlines()[-1] == "ValueError: boom-41"
    assert "first failure: rank 1 of 3" in err
    assert "runpy" not in err


def test_crash_shows_where(job):
    _, _, err = by_cli(job, "SIGSEGV").finish()
    assert "first failure: rank 1: killed by signal 11" in err
    assert "in work" in err


def test_ranks_that_never_start_mpi_end_together(tmp_path):
    (tmp_path / "job.py").write_text(
        "import os, sys, time\nfrom hpcdist.comm.launched import launched\n"
        "sys.exit('no such data') if launched(os.environ).rank == 1 else time.sleep(60)\n"
    )
    code, _, err = launch(tmp_path, "-n", "2", "job.py").finish()
    assert code == 1
    assert "no such data" in err


def test_ranks_get_arguments_threads_and_their_world(tmp_path):
    (tmp_path / "neighbour.py").write_text("name = 'found beside the job'\n")
    (tmp_path / "job.py").write_text(
        "import os, sys, hpcdist, neighbour\ncomm = hpcdist.init()\n"
        "words = [comm.rank, comm.size, sys.argv, __name__, neighbour.name, os.environ['OMP_NUM_THREADS']]\n"
        "said = comm.all_gather_object(words)\n"
        "if comm.rank == 0: print(*said, sep='\\n')\n"
    )
    code, out, err = launch(tmp_path, "-n", "2", "job.py", "--steps", "3", OMP_NUM_THREADS="7").finish()
    assert code == 0, err
    argv = ["job.py", "--steps", "3"]
    assert out.splitlines() == [str([r, 2, argv, "__main__", "found beside the job", "7"]) for r in range(2)]


def test_working_folder_does_not_shadow_the_standard_library(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/job.py").write_text("import argparse\nprint('fine')\n")
    for name in ("argparse", "signal", "queue"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('shadowed')\n")
    command = [str(Path(sys.executable).parent / "hpcdist"), "launch", "-n", "1", "jobs/job.py"]
    assert Started(command, tmp_path).finish()[:2] == (0, "fine\n")


def test_modules_and_programs(tmp_path):
    (tmp_path / "tool.py").write_text("import sys\nprint('tool', sys.argv[1:])\n")
    code, out, err = launch(tmp_path, "-n", "2", "-m", "tool", "-x").finish()
    assert (code, out) == (0, "tool ['-x']\n" * 2), err
    code, out, err = launch(tmp_path, "-n", "2", "--no-python", "echo", "hello").finish()
    assert (code, out) == (0, "hello\n" * 2), err


SLEEPER = """
import pathlib, signal, sys, time
from hpcdist.comm.launched import launched
import os
rank = launched(os.environ).rank
def note(number, frame):
    pathlib.Path(f"got-{rank}-{number}").touch()
signal.signal(signal.SIGUSR1, note)
signal.signal(signal.SIGUSR2, note)
pathlib.Path(f"ready-{rank}").write_text(os.environ["HPCDIST_ERROR_DIR"])
while not all(pathlib.Path(f"got-{rank}-{n}").exists() for n in (signal.SIGUSR1, signal.SIGUSR2)):
    time.sleep(0.02)
"""


def wait_for(folder, pattern, count):
    limit = time.monotonic() + LIMIT_S
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < limit, f"no {pattern}"
        time.sleep(0.02)


@pytest.fixture
def sleeper(tmp_path):
    (tmp_path / "job.py").write_text(SLEEPER)
    started = launch(tmp_path, "-n", "2", "job.py")
    wait_for(tmp_path, "ready-*", 2)
    return started


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_launcher_ends_everything(sleeper, number):
    sleeper.process.send_signal(number)
    code, _, err = sleeper.finish()
    assert code == 128 + number
    assert f"ended by {number.name}" in err


def test_user_signals_reach_every_rank(sleeper, tmp_path):
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        sleeper.process.send_signal(number)
        wait_for(tmp_path, f"got-*-{number:d}", 2)
    assert sleeper.finish()[0] == 0


def test_killed_launcher_leaves_no_process(sleeper, tmp_path):
    sleeper.process.kill()
    assert sleeper.finish()[0] == -signal.SIGKILL
    shutil.rmtree((tmp_path / "ready-0").read_text())  # nobody was left to remove its folder of reports


def test_killed_mpirun_leaves_nothing(sleeper):
    children = Path(f"/proc/{sleeper.process.pid}/task/{sleeper.process.pid}/children").read_text()
    os.kill(int(children.split()[0]), signal.SIGKILL)
    code, _, err = sleeper.finish()
    assert code == 137
    assert "mpirun was killed" in err


@pytest.mark.parametrize(
    "arguments", [("-n", "2", "no-such.py"), ("-n", "0", "job.py"), ("-n", "2"), ("job.py",)], ids=" ".join
)
def test_bad_usage_ends_within_a_second(tmp_path, arguments):
    (tmp_path / "job.py").write_text("")
    started = launch(tmp_path, *arguments)
    code, _, err = started.finish()
    assert code == 2
    assert "hpcdist launch: " in err
    assert time.monotonic() - started.began < 2


def test_a_variable_that_makes_no_sense_is_told_once(job):
    code, _, err = launch(job.parent, "-n", "2", job.name, HPCDIST_RESTART_COUNT="x").finish()
    assert code == 2
    assert err.count("HPCDIST_RESTART_COUNT") == 1


def test_rank_of_a_step_that_is_alone_is_told(job):
    variables = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_PROCID": "2"}
    started = Started([sys.executable, "-m", "hpcdist", "run", job.name, "exit0"], job.parent, **variables)
    code, _, err = started.finish()
    assert code == 1
    assert "rank 2 of 4" in err
    assert "a world of 1 rank" in err
