"""How a launch ended: the failure that came first, from what ranks left behind and the status of their launcher."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Verdict", "any_report", "judge"]

_SILENT = (signal.SIGKILL, signal.SIGTERM)
"""Signals that leave no trace of a crash."""

_TIME_OUT = "DistTimeoutError"

_CRASHES = {
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Floating": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
"""How Python's fault handler names signals; everything else aborts."""


@dataclass(frozen=True)
class Verdict:
    """The exit code of a launch, what to show last, and whether that leaves open where the ranks stood."""

    exit_code: int
    text: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class _Failure:
    time: float
    exit_code: int
    who: str
    what: str
    trace: str


def any_report(folder: Path) -> bool:
    """Say whether a rank has reported a failure."""
    return any(folder.glob("rank-*.json"))


def judge(folder: Path, status: int, *, hydra: bool) -> Verdict:
    """Tell how the ranks that reported to ``folder`` ended.

    Parameters
    ----------
    folder : Path
        Has ``rank-R.json`` of each rank that failed, ``rank-R.fault`` (not empty) of each that crashed.
    status : int
        Exit status of the launcher of the ranks; -n if signal n killed it.
    hydra : bool
        Whether the launcher says n for signal n, as MPICH's does (Open MPI's says 128 + n).
    """
    failures = sorted([*_reports(folder), *_crashes(folder)], key=lambda failure: failure.time)
    if failures:
        is_open = failures[0].what in (_TIME_OUT, *map(_killed_by, signal.Signals))
        return Verdict(failures[0].exit_code, _describe(failures), is_open)
    if status < 0:
        return Verdict(128 - status, f"first failure: mpirun was {_killed_by(signal.Signals(-status))}")
    if hydra and status in _SILENT:
        status += 128
    return Verdict(status, _describe_status(status) if status else "", status != 0)


def _reports(folder: Path) -> Iterator[_Failure]:
    for path in folder.glob("rank-*.json"):
        try:
            report = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # the rank was killed while it wrote: others had failed before
        who = f"rank {report['rank']} of {report['size']} ({report['host']}, pid {report['pid']})"
        yield _Failure(report["time"], report["exit_code"], who, report["kind"], report["traceback"].rstrip())


def _crashes(folder: Path) -> Iterator[_Failure]:
    for path in folder.glob("rank-*.fault"):
        trace = path.read_text(errors="replace").rstrip()
        if trace:
            number = next((number for name, number in _CRASHES.items() if name in trace), signal.SIGABRT)
            who = f"rank {path.stem.removeprefix('rank-')}"
            yield _Failure(path.stat().st_mtime, 128 + number, who, _killed_by(number), trace)


def _describe(failures: list[_Failure]) -> str:
    first, *others = failures
    lines = [f"also failed: {other.who}: {_last_words(other)}" for other in others]
    return "\n".join([*lines, f"first failure: {first.who}: {first.what}", first.trace])


def _last_words(failure: _Failure) -> str:
    """Return the line that says what happened: ``package.Error: what``, and not what to do about it."""
    lines = [line for line in failure.trace.splitlines() if not line.startswith(" ")]
    said = next((line for line in reversed(lines) if failure.what in line), "")
    return said or f"{failure.what}: {lines[-1] if lines else ''}"


def _describe_status(status: int) -> str:
    number = status - 128
    if number in set(signal.Signals):
        return f"first failure: a rank was {_killed_by(signal.Signals(number))}"
    return f"first failure: a rank, or the launcher of the ranks, ended with status {status}"


def _killed_by(number: signal.Signals) -> str:
    return f"killed by signal {number} ({number.name})"
