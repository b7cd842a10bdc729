"""Exits are remembered, and are exits all the same; in processes of their own, since the replacement stays."""

import os
import socket
import subprocess
import sys

import pytest

RANK = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
REPORT = """
import atexit
def report():
    from hpcdist.comm import exits
    told = exits.told()
    print("told", told and repr(told.code))
atexit.register(report)
"""


def run(code, **variables):
    without = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "SLURM_"))}
    return subprocess.run(
        [sys.executable, "-c", code], env={**without, **variables}, capture_output=True, text=True, timeout=30
    )


@pytest.mark.parametrize(
    ("leave", "status", "told"),
    [
        ("sys.exit(3)", 3, "3"),
        ("exit(3)", 3, "3"),
        ("quit()", 0, "None"),
        ("sys.exit()", 0, "None"),
        ("sys.exit('sorry')", 1, "'sorry'"),
        ("sys.exit((lambda: 4)())", 4, "4"),
    ],
)
def test_an_exit_is_remembered(leave, status, told):
    done = run(f"import sys, hpcdist\n{REPORT}\n{leave}", **RANK)
    assert (done.returncode, done.stdout) == (status, f"told {told}\n")
    assert ("sorry" in done.stderr) is ("sorry" in leave)


@pytest.mark.parametrize("leave", ["raise SystemExit(3)", "early(3)"])
def test_an_exit_that_is_out_of_reach(leave):
    done = run(f"from sys import exit as early\nimport hpcdist\n{REPORT}\n{leave}", **RANK)
    assert (done.returncode, done.stdout) == (3, "told None\n")


def test_an_exit_of_another_thread_is_not_the_programs():
    leave = "import threading\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()"
    done = run(f"import sys, hpcdist\n{REPORT}\n{leave}", **RANK)
    assert (done.returncode, done.stdout) == (0, "told None\n")


@pytest.mark.parametrize(("variables", "replaced"), [({}, False), (RANK, True)])
def test_only_ranks_of_a_job_listen(variables, replaced):
    done = run("import sys\nbefore = sys.exit\nimport hpcdist\nprint(sys.exit is not before)", **variables)
    assert done.stdout == f"{replaced}\n", done.stderr


HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("leave", "status"),
    [("raise ValueError", 1), ("sys.exit(3)", 3), ("pass", None), ("sys.exit(0)", None), ("caught()", None)],
)
def test_hydra_is_told_of_a_rank_that_fails_before_it_starts_mpi(leave, status):
    """It would let the others wait in MPI_Init; the message is the one that ranks abort with, see PMI-1."""
    caught = "def caught():\n    try: sys.exit(3)\n    except SystemExit: pass\n"
    ours, ranks = socket.socketpair()
    with ours, ranks:
        variables = {**os.environ, **HYDRA, "PMI_FD": str(ranks.fileno())}
        command = [sys.executable, "-c", f"import sys, hpcdist\n{caught}{leave}"]
        child = subprocess.Popen(command, env=variables, pass_fds=[ranks.fileno()], stderr=subprocess.DEVNULL)
        ranks.close()
        said = [ours.recv(1024)]
        if said[0]:
            ours.sendall(b"cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n")
            said.append(ours.recv(1024))
        child.wait(30)
    hello = b"cmd=init pmi_version=1 pmi_subversion=1\n"
    assert said == ([b""] if status is None else [hello, b"cmd=abort exitcode=%d\n" % status])


def test_what_the_program_has_in_their_place_stays():
    done = run("import sys\nsys.exit = print\nimport hpcdist\nsys.exit('mine')", **RANK)
    assert (done.returncode, done.stdout) == (0, "mine\n")
