"""Exits are remembered, and are exits all the same; in processes of their own, since the replacement stays."""

import os
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
