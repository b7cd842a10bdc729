"""Tests on MPI ranks: the communicator, and the agreement of the ranks on how each test ended."""

import faulthandler
import functools
import sys
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

HELPERS = {p.stem for p in Path(__file__).parents[1].glob("*.py")} - {"conftest"}
pytest.register_assert_rewrite(*sorted(HELPERS - sys.modules.keys()))

TEST_LIMIT_S = 60
WAIT_LIMIT_S = 20


@pytest.fixture
def world():
    """All ranks, as an MpiCommunicator that no failed test has left in disorder."""
    return adopt("world", WAIT_LIMIT_S)


def adopt(name, timeout_s):
    from mpi4py import MPI

    from hpcdist.comm.mpi.communicator import MpiCommunicator

    return MpiCommunicator.adopt(MPI.COMM_WORLD, name=name, timeout_s=timeout_s, check=True)


@functools.cache
def referee():
    return adopt("referee", 2 * TEST_LIMIT_S)


def is_rank(item):
    """Say whether this process is a rank, and not the one that starts the ranks."""
    return item.config.getoption("--with-mpi")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """End a test that hangs: all threads' tracebacks, then the process, and with it the MPI job."""
    if is_rank(item):
        stream = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(TEST_LIMIT_S, exit=True, file=stream)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    if is_rank(item):
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Let a test fail everywhere if it failed anywhere, so that all ranks go on to the same one."""
    report = yield
    if is_rank(item) and call.when != "teardown":
        text = report.longreprtext if report.failed else ""
        outcomes = referee().all_gather_object((report.outcome, text))
        differing = [rank for rank, (outcome, _) in enumerate(outcomes) if outcome != report.outcome]
        if differing and not report.failed:
            outcome, text = outcomes[differing[0]]
            report.longrepr = f"{outcome} on rank {differing[0]}, {report.outcome} here\n{text}"
            report.outcome = "failed"
    return report
