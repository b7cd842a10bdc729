"""Plain ``pytest`` on a folder with MPI tests: it starts ranks, and says which test failed on which of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from other_mpis import OTHER_MPIS, REQUIRED

SETTINGS = """
[tool:pytest]
pythonpath = tests
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
    for name in ("conftest.py", "other_mpis.py"):
        shutil.copy(Path(__file__).parents[1] / name, tmp_path / "tests")
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("HPCDIST_TEST_", REQUIRED))}

    def run(tests, *options, before=("-m", "pytest"), **variables):
        (tmp_path / "tests/mpi/test_trial.py").write_text(tests)
        command = [sys.executable, *before, "-p", "no:cacheprovider", *options, "tests"]
        kept = {"cwd": tmp_path, "env": {**inherited, **variables}, "timeout": 100}
        done = subprocess.run(command, **kept, capture_output=True, text=True, check=False)
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


SAYS_WHICH = """
from mpi4py import MPI
RANKS = (2,)

def test_library():
    assert MPI.COMM_WORLD.Get_size() == 2
    raise AssertionError("got " + MPI.Get_library_version().replace(" v", " "))
"""


def test_other_mpis_are_optional_and_the_reason_says_how_to_name_them(suite):
    code, said = suite(PASSES, "-v", "-k", "mpich")
    assert code == 0, said
    assert "test_trial.py::mpich-ranks3 SKIPPED" in said
    assert "optional: HPCDIST_TEST_MPICH may name a libmpi.so of MPICH" in said
    assert "1 skipped" in said  # no item where the file is for other rank counts


def test_what_is_required_may_not_be_missing(suite):
    code, said = suite(PASSES, "-k", "mpich", HPCDIST_REQUIRE="something,mpich")
    assert code == 1
    assert "HPCDIST_REQUIRE asks for MPICH, and HPCDIST_TEST_MPICH does not name it" in said
    code, said = suite(PASSES, "-k", "mpich", HPCDIST_TEST_MPICH="/no/such/libmpi.so.12")
    assert code == 1
    assert "HPCDIST_TEST_MPICH names /no/such/libmpi.so.12, which is not there" in said


@pytest.mark.parametrize("mpi", OTHER_MPIS, ids=lambda mpi: mpi.name)
def test_ranks_of_another_mpi_are_its_own(suite, mpi):
    library = mpi.variables()["MPI4PY_LIBMPI"]
    code, said = suite(SAYS_WHICH, "-k", f"{mpi.name}-ranks2", **{mpi.variable: library})
    assert code == 1
    assert f"got {mpi.title}" in said
