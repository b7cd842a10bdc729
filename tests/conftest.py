"""Plain ``pytest`` runs each file of tests/mpi once a rank count, through the launcher; ``--with-mpi`` is a rank.

Where variables name other MPIs (see other_mpis.py) the files run on these too.
"""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from other_mpis import OTHER_MPIS

from hpcdist.comm.launched import launched

MPI_TESTS = Path(__file__).parent / "mpi"
RANKS = (1, 2, 3, 4)
LIMIT_S = 300
NOTHING_SELECTED = 5
REPORTS = "HPCDIST_TEST_REPORTS"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Give every rank a temporary folder of its own: pytest sweeps a common one while others look into it."""
    folder, place = os.environ.get(REPORTS), launched(os.environ)
    if folder and place and config.getoption("--with-mpi", default=False):
        config.option.basetemp = str(Path(folder) / f"tmp-{place.rank}")


@pytest.fixture(scope="session")
def repeats():
    """How often tests of chance and of races are repeated: HPCDIST_TEST_REPEATS."""
    return int(os.environ.get("HPCDIST_TEST_REPEATS", "2"))


def pytest_pycollect_makemodule(module_path, parent):
    if MPI_TESTS not in module_path.parents:
        return None
    if not parent.config.getoption("--with-mpi", default=False):
        return RankFile.from_parent(parent, path=module_path)
    place, wanted = launched(os.environ), min(_ranks(module_path))
    size = place.size if place else 1
    return None if size >= wanted else TooFewRanks.from_parent(parent, path=module_path, size=size, wanted=wanted)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Undo what pytest-mpi does to everything in a folder named mpi: it skips it without --with-mpi."""
    for item in items:
        if isinstance(item, RankItem):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]


def _ranks(path):
    """Return the module's constant RANKS without importing it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["RANKS"]:
            return tuple(ast.literal_eval(node.value))
    return RANKS


class TooFewRanks(pytest.File):
    """A file of tests/mpi that needs more ranks than there are; an error only if it is asked for."""

    def __init__(self, *, size, wanted, **kwargs):
        super().__init__(**kwargs)
        self.size, self.wanted = size, wanted

    def collect(self):
        raise self.CollectError(f"{self.path.name}: needs {self.wanted} ranks or more, got {self.size}")


class RankFile(pytest.File):
    """A file of tests/mpi: one item a rank count, and one a rank count of every other MPI."""

    def collect(self):
        counts = _ranks(self.path)
        yield from (self._item(n, "not soak", f"ranks{n}") for n in counts)
        if "mark.soak" in self.path.read_text():
            yield from (self._item(n, "soak", f"ranks{n}-soak") for n in counts)
        for mpi in (mpi for mpi in OTHER_MPIS if self.path.name not in mpi.left_out):
            yield from (self._item(n, "not soak", f"{mpi.name}-ranks{n}", mpi) for n in mpi.ranks if n in counts)

    def _item(self, num_ranks, markers, name, mpi=None):
        item = RankItem.from_parent(self, name=name, num_ranks=num_ranks, markers=markers, mpi=mpi)
        if markers == "soak":
            item.add_marker("soak")
        return item


class RankItem(pytest.Item):
    """All tests of a file, run by ranks of their own."""

    def __init__(self, *, num_ranks, markers, mpi, **kwargs):
        super().__init__(**kwargs)
        self.num_ranks, self.markers, self.mpi = num_ranks, markers, mpi

    def runtest(self):
        variables = self.mpi.variables() if self.mpi else {}
        folder = self.config._tmp_path_factory.mktemp(f"{self.path.stem}-{self.name}")
        status, output = _run(self._command(), folder, variables)
        failures = _failures(folder)
        if status == NOTHING_SELECTED and not failures:
            pytest.skip(f"no test of {self.path.name} is selected")
        if status or failures:
            raise RanksFailedError(_compose(failures, self.num_ranks) or f"exit status {status}\n{output[-8000:]}")

    def _command(self):
        launch = [sys.executable, "-m", "hpcdist", "launch", "-n", str(self.num_ranks), "-m", "pytest"]
        options = ["--with-mpi", "-q", "-p", "no:cacheprovider"]
        return [*launch, *options, "-m", self.markers, str(self.path)]

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, RanksFailedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        where = f" of {self.mpi.title}" if self.mpi else ""
        return self.path, 0, f"{self.path.name} on {self.num_ranks} ranks{where}"


class RanksFailedError(Exception):
    """Some rank failed."""


def _run(command, folder, variables):
    """Run ``command``, at most LIMIT_S seconds, with more ``variables``; return its status and what it printed."""
    log = folder / "output.txt"
    with log.open("wb") as stream:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, REPORTS: str(folder), **variables},
        )
        try:
            status = started.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = f"none after {LIMIT_S} s"
        finally:
            _end(started)
    return status, log.read_text(errors="replace")


def _end(started):
    for number in (signal.SIGTERM, signal.SIGKILL):
        if started.poll() is None:
            started.send_signal(number)
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                continue


def _failures(folder):
    """Return what ranks reported: failing phases of tests, the first in time first, adopted failures last."""
    lines = [line for path in sorted(folder.glob("rank-*.jsonl")) for line in path.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda failure: (failure["adopted"], failure["time"]))


def _compose(failures, num_ranks):
    """Show each failing test once, by the rank that failed first."""
    first, ranks = {}, {}
    for failure in failures:
        first.setdefault(failure["test"], failure)
        ranks.setdefault(failure["test"], []).append(failure["rank"])
    return "\n\n".join(
        f"{test} failed ({failure['when']}) on rank {failure['rank']} of {num_ranks}"
        f" (failed on: {sorted(set(ranks[test]))})\n{failure['text']}"
        for test, failure in first.items()
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    _report(report.nodeid, report)


@pytest.hookimpl(tryfirst=True)
def pytest_collectreport(report):
    _report(report.nodeid, report)


def _report(test, report):
    """As a rank of a RankItem: leave failures where it looks for them."""
    folder, place = os.environ.get(REPORTS), launched(os.environ)
    if folder and place and report.failed:
        text = "\n".join([report.longreprtext, *(f"-- {title}\n{body}" for title, body in report.sections)])
        when = getattr(report, "when", "collect")
        ended = getattr(report, "stop", time.time())  # a report is made when all ranks have ended the phase
        failure = {"test": test, "rank": place.rank, "when": when, "time": ended, "text": text}
        failure["adopted"] = isinstance(report.longrepr, str)  # the failure of another rank, agreed on
        with Path(folder, f"rank-{place.rank}.jsonl").open("a") as stream:
            stream.write(json.dumps(failure) + "\n")
