"""Ranks that stop, dawdle, die, or go astray: what is said about them, by whom, and what remains (promise 7)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcdist import cli

LIMIT_S = 30
SCRIPT = """
import atexit, os, signal, sys, threading, time
import numpy as np
import hpcdist as hd
from mpi4py import MPI

comm = hd.init(timeout_s=float(os.environ.get("LIMIT", 600)))
mode, last = sys.argv[1], comm.rank == comm.size - 1
comm.broadcast(np.zeros(4))

def signal_main(number, after_s):
    threading.Timer(after_s, os.kill, (os.getpid(), number)).start()

if mode == "out":
    from hpcdist.train import open_folder
    folder, _ = open_folder("out", comm, name="job")
    comm.barrier()
    print(sorted(path.name for path in (folder / "flight").iterdir()) if comm.rank == 0 else "", flush=True)
    comm.barrier()
if last:
    end = time.monotonic() + 0.3
    while time.monotonic() < end:  # what others need of this rank, to end their first call
        MPI.COMM_WORLD.Iprobe()
    if mode == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if mode == "delay":
        time.sleep(0.9)
    if mode == "out":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "lingers":
        atexit.register(time.sleep, 1.5)
    if mode == "early":
        sys.exit(0)
if mode == "order":
    (comm.all_reduce if last else comm.all_gather)(np.ones(4))
if mode == "wait for a message" and comm.rank == 0:
    comm.recv(np.ones(4), 1)
if mode == "MPI does not return":
    from hpcdist.comm import watchdog
    watchdog.GRACE_S = 0.2
    if comm.rank == 0:
        operation = comm._operation(hd.comm.mpi.verbs.barrier(comm))
        comm._recorder.begin(operation, "0-2", limit_s=0.8)
        MPI.COMM_WORLD.Barrier()
    time.sleep(60)
if mode == "signal":
    if comm.rank == 0:
        signal_main(signal.SIGUSR2, 0.3)
        MPI.COMM_WORLD.Barrier()  # no step of the interpreter until rank 1 comes
    if comm.rank == 1:
        time.sleep(1)
        MPI.COMM_WORLD.Barrier()
if mode == "signal and the lock" and comm.rank == 0:
    import ctypes
    libc = ctypes.PyDLL(None)
    child = os.fork()
    if child == 0:
        time.sleep(0.3)
        os.kill(os.getppid(), signal.SIGUSR2)
        os._exit(0)
    libc.sleep(2)
    os.waitpid(child, 0)
if mode == "child" and comm.rank == 0:
    child = os.fork()
    if child == 0:
        print("stopped by", signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL, comm._recorder.path, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
comm.all_reduce(np.ones(1024, np.float32))
"""


@pytest.fixture
def start(tmp_path):
    """Run the script on some ranks in an empty folder; return exit code, output and errors."""
    (tmp_path / "job.py").write_text(SCRIPT)

    def run(mode, size=3, *, script="job.py", **variables):
        return finish(["launch", "-n", str(size), script, mode], tmp_path, {"HPCDIST_LATE_S": "0.5", **variables})

    return run


def finish(arguments, folder, variables):
    child = subprocess.Popen(
        [sys.executable, "-m", "hpcdist", *arguments],
        env={**os.environ, **variables},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        out, err = child.communicate(timeout=LIMIT_S)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=LIMIT_S)
    return child.returncode, out, err


def line(number):
    """Return where the script has a line."""
    return f"job.py:{1 + SCRIPT.splitlines().index(number)}"


REDUCE = line("comm.all_reduce(np.ones(1024, np.float32))")
BROADCAST = line("comm.broadcast(np.zeros(4))")
MISSING = (
    f"Rank 2 has not come to all_reduce no. 2 of group 'world' (float32 (1024,), {REDUCE}), in which ranks 0 and 1 have"
)
LAST = f"its last call was broadcast no. 1 at {BROADCAST}, ended "


def warnings(err):
    return [text for text in err.splitlines() if MISSING in text]


def test_a_rank_that_is_stopped_is_named_while_others_wait_and_when_they_give_up(start, tmp_path):
    code, _, err = start("stop", LIMIT="1.8", HPCDIST_FLIGHT_DIR=str(tmp_path / "flight"))
    assert code == 1
    first, *more = [text for text in warnings(err) if text.startswith("rank ")]
    assert first.partition(": ")[0] in ("rank 0 of 3", "rank 1 of 3")
    assert "have waited for 0." in first
    assert all("have waited for 1." in text for text in more)
    assert LAST in first
    assert first.endswith("and its process is stopped.")
    assert "DistTimeoutError: all_reduce of float32 (1024,)" in err
    report, where = err.splitlines()[-2:]
    assert report.startswith(("Rank 2 has not come", "All have come")), err  # at the end it may have been woken
    assert where == f"hpcdist doctor --flight {tmp_path}/flight shows the last calls"


def test_a_rank_that_dawdles_is_named_and_the_job_goes_on(start):
    """The launcher lends a folder where the job has none."""
    code, _, err = start("delay")
    assert code == 0
    said, *_ = warnings(err)
    assert LAST in said
    assert "stopped" not in said


def test_a_rank_that_does_not_come_to_the_end_of_the_program_is_named(start):
    code, _, err = start("lingers")
    assert code == 0
    said, *_ = [text for text in err.splitlines() if "the end of the program" in text]
    assert "Rank 2 has not come to the end of the program, in which ranks 0 and 1 have waited for " in said
    assert f"its last call was all_reduce no. 2 at {REDUCE}, ended " in said


def test_in_the_folder_of_the_run_rings_survive_sigkill_and_are_read_without_mpi(start, tmp_path, capsys):
    code, out, err = start("out")
    assert code == 137
    assert {"rank-0.flight", "rank-1.flight", "rank-2.flight"} <= set(eval(out.strip()))
    assert "first failure: a rank was killed by signal 9 (SIGKILL)" in err
    assert "Rank 2 has not come to all_reduce" in err
    assert err.splitlines()[-1] == f"hpcdist doctor --flight {tmp_path}/out/flight shows the last calls"
    assert cli.main(["doctor", "--flight", str(tmp_path / "out" / "flight"), "--last", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Rank 2 has not come to all_reduce")
    assert "rank 2 of 3" in said
    assert said.splitlines()[-1].split()[3:5] == ["barrier", "no."]


def test_a_good_end_leaves_no_file_but_in_a_folder_that_was_asked_for(start, tmp_path):
    assert start("none", 2, HPCDIST_FLIGHT_DIR=str(tmp_path / "flight"))[0] == 0
    assert sorted(path.name for path in (tmp_path / "flight").iterdir()) == ["rank-0.flight", "rank-1.flight"]
    (tmp_path / "good.py").write_text(
        SCRIPT.replace('mode == "out":\n        os.kill', 'mode == "-":\n        os.kill')
    )
    code, out, _ = start("out", 2, script="good.py")
    assert (code, eval(out.strip())[:1]) == (0, ["rank-0.flight"])
    assert not (tmp_path / "out" / "flight").exists()


def test_a_rank_that_ended_early_is_named(start, tmp_path, capsys):
    code, *_ = start("early", LIMIT="1", HPCDIST_FLIGHT_DIR=str(tmp_path / "flight"))
    assert code == 1
    cli.main(["doctor", "--flight", str(tmp_path / "flight")])
    said = capsys.readouterr().out
    assert said.startswith("Rank 2 has not come to all_reduce no. 2 of group 'world'")
    assert "; it came to the end of the program " in said


def test_ranks_in_different_calls_are_shown(start, tmp_path, capsys):
    flight = tmp_path / "flight"
    code, *_ = start("order", LIMIT="2", HPCDIST_FLIGHT_DIR=str(flight))
    assert code != 0
    cli.main(["doctor", "--flight", str(flight)])
    out = capsys.readouterr().out
    assert "Ranks differ in call no. 2 of group 'world'" in out
    assert "ranks 0 and 1 called all_gather (float64 (4,), job.py:" in out
    assert "rank 2 called all_reduce (float64 (4,), job.py:" in out


def test_a_message_that_does_not_come(start, tmp_path, capsys):
    code, *_ = start("wait for a message", LIMIT="1", HPCDIST_FLIGHT_DIR=str(tmp_path / "flight"))
    assert code == 1
    cli.main(["doctor", "--flight", str(tmp_path / "flight")])
    said = capsys.readouterr().out
    assert "Rank 0 has been in recv from rank 1 (float64 (4,), job.py:" in said
    assert f"Rank 0 has not come to all_reduce no. 2 of group 'world' (float32 (1024,), {REDUCE})" in said


def test_a_call_that_mpi_does_not_return_from_ends_the_job(start):
    began = time.monotonic()
    code, _, err = start("MPI does not return")
    assert code == 1
    assert time.monotonic() - began < 15
    assert "not done within 0.8 s, and MPI does not return" in err
    assert "rank 0 of 3" in err


@pytest.mark.parametrize("folder", [True, False])
def test_a_signal_tells_where_a_rank_is_although_it_is_inside_mpi(start, tmp_path, folder):
    where = {"HPCDIST_FLIGHT_DIR": str(tmp_path / "flight")} if folder else {}
    code, _, err = start("signal", 2, **where)
    assert code == 0, err
    assert f"rank 0 of 2 ({os.uname().nodename}, pid " in err
    assert "): in no call" in err
    assert "thread MainThread:\n" in err
    assert "    MPI.COMM_WORLD.Barrier()  # no step of the interpreter until rank 1 comes" in err
    if folder:
        stacks = (tmp_path / "flight" / "stacks-0.txt").read_text()
        assert "most recent call first" in stacks
        assert "rank 0 of 2" in stacks
        assert not (tmp_path / "flight" / "stacks-1.txt").exists()


def test_a_signal_while_a_thread_holds_the_lock_leaves_stacks(start, tmp_path):
    code, *_ = start("signal and the lock", 2, HPCDIST_FLIGHT_DIR=str(tmp_path / "flight"))
    assert code == 0
    stacks = (tmp_path / "flight" / "stacks-0.txt").read_text()
    assert "most recent call first" in stacks
    assert f'job.py", line {line("    libc.sleep(2)").partition(":")[2]}' in stacks


def test_a_forked_child_has_neither_the_ring_nor_the_signal(start, tmp_path):
    code, out, _ = start("child", 2, HPCDIST_FLIGHT_DIR=str(tmp_path / "flight"))
    assert (code, out) == (0, "stopped by True None\n")


HOST = """
import logging, os, signal, sys, time
import numpy as np
from mpi4py import MPI
import hpcdist as hd

mine = lambda *_: None
signal.signal(signal.SIGUSR2, mine)
if sys.argv[1] == "logging":
    logging.basicConfig(format="HOST %(name)s %(message)s")
comm = hd.init(MPI.COMM_WORLD)
assert signal.getsignal(signal.SIGUSR2) is mine
assert signal.set_wakeup_fd(-1) == -1
if comm.rank == 1:
    time.sleep(0.9)
comm.barrier()
"""


@pytest.mark.parametrize("mode", ["silent", "logging"])
def test_on_a_hosts_communicator_only_its_logging_hears(start, tmp_path, mode):
    (tmp_path / "host.py").write_text(HOST)
    code, out, err = start(mode, 2, script="host.py", HPCDIST_FLIGHT_DIR=str(tmp_path / "flight"))
    assert (code, out) == (0, "")
    barrier = f"host.py:{1 + HOST.splitlines().index('comm.barrier()')}"
    said = f"HOST hpcdist.comm rank 0 of 2: Rank 1 has not come to barrier no. 1 of group 'world' ({barrier})"
    heard = said in err
    assert heard is (mode == "logging")
    assert ("has not come" in err) is heard
    assert {path.name for path in Path(tmp_path / "flight").iterdir()} == {"rank-0.flight", "rank-1.flight"}
