"""Plain ``pytest`` on a folder with MPI tests: it starts ranks, and says which test failed on which of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = """
[tool:pytest]
addopts = -ra --import-mode=importlib -m "not soak"
markers = soak: slow
filterwarnings = error
"""
PASSES = """
from mpi4py import MPI
RANKS = (1, 3)

def test_sizes():
    assert MPI.COMM_WORLD.Get_size() in RANKS
"""
FAILS = """
import os, signal
from mpi4py import MPI
import pytest
RANKS = (2,)
rank = MPI.COMM_WORLD.Get_rank()

def test_fine():
    pass

def test_bad():
    print("said by", rank)
    value = {"rank": rank}
    assert value["rank"] == 0, "boom-41"

@pytest.mark.soak
def test_slow():
    os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture
def suite(tmp_path):
    """Return a function that runs pytest in a project with this conftest and the given MPI tests."""
    (tmp_path / "setup.cfg").write_text(SETTINGS)
    (tmp_path / "tests/mpi").mkdir(parents=True)
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path / "tests")

    def run(tests, *options, before=("-m", "pytest")):
        (tmp_path / "tests/mpi/test_trial.py").write_text(tests)
        command = [sys.executable, *before, "-p", "no:cacheprovider", *options, "tests"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_one_item_a_rank_count(suite):
    code, said = suite(PASSES, "-v")
    assert code == 0, said
    assert "test_trial.py::ranks1 PASSED" in said
    assert "test_trial.py::ranks3 PASSED" in said
    assert "2 passed" in said


def test_failure_names_test_and_rank_and_shows_its_traceback(suite):
    code, said = suite(FAILS)
    assert code == 1
    assert "test_trial.py::test_bad failed (call) on rank 1 of 2" in said
    assert "AssertionError: boom-41" in said
    assert "said by 1" in said
    assert "said by 0" not in said
    assert "test_fine" not in said
    assert "1 failed" in said


def test_crash_of_a_rank_is_a_failure_that_shows_where(suite):
    code, said = suite(FAILS, "-m", "soak")
    assert code == 1
    assert "Segmentation fault" in said
    assert "in test_slow" in said


def test_broken_file_is_a_failure(suite):
    code, said = suite("import no_such_module\nRANKS = (2,)\n")
    assert code == 1
    assert "failed (collect) on rank" in said
    assert "No module named 'no_such_module'" in said


def test_too_few_ranks_is_a_failure(suite):
    by_hand = ("-m", "hpcdist", "launch", "-n", "1", "-m", "pytest")
    code, said = suite(FAILS, "--with-mpi", before=by_hand)
    assert code != 0
    assert "test_trial.py: needs 2 ranks or more, got 1" in said
