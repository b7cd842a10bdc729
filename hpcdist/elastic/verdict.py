"""How a launch ended: the failure that came first, from the reports of ranks and the status of their launcher."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Verdict", "any_report", "judge"]

_SILENT = (signal.SIGKILL, signal.SIGTERM)
"""Signals that leave no trace of a crash."""


@dataclass(frozen=True)
class Verdict:
    """The exit code of a launch, and what to show last."""

    exit_code: int
    text: str = ""


def any_report(folder: Path) -> bool:
    """Say whether a rank has reported a failure."""
    return any(folder.glob("rank-*.json"))


def judge(folder: Path, status: int, *, hydra: bool) -> Verdict:
    """Tell how the ranks that reported to ``folder`` ended.

    Parameters
    ----------
    folder : Path
        Has ``rank-R.json`` of each rank that failed, ``rank-R.fault`` of each that crashed.
    status : int
        Exit status of the launcher of the ranks; -n if signal n killed it.
    hydra : bool
        Whether the launcher says n for signal n, as MPICH's does (Open MPI's says 128 + n).
    """
    reports = sorted(_reports(folder), key=lambda report: float(report["time"]))
    if reports:
        return Verdict(int(reports[0]["exit_code"]), _describe(reports))
    crashes = [path for path in sorted(folder.glob("rank-*.fault")) if path.stat().st_size]
    if status < 0 or (hydra and (crashes or status in _SILENT)):
        status = 128 + abs(status)
    return Verdict(status, _describe_crash(crashes, status) if status else "")


def _reports(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.glob("rank-*.json"):
        try:
            yield json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # the rank was killed while it wrote; it was not the first to fail then


def _describe(reports: list[dict[str, Any]]) -> str:
    first, *others = reports
    lines = [f"also failed: {_who(other)}: {_last_line(other)}" for other in others]
    lines.append(f"first failure: {_who(first)}: {first['kind']}")
    lines.append(str(first["traceback"]).rstrip())
    return "\n".join(lines)


def _who(report: dict[str, Any]) -> str:
    return f"rank {report['rank']} of {report['size']} ({report['host']}, pid {report['pid']})"


def _last_line(report: dict[str, Any]) -> str:
    return (str(report["traceback"]).rstrip().splitlines() or [""])[-1]


def _describe_crash(crashes: list[Path], status: int) -> str:
    number = status - 128
    if number not in set(signal.Signals):
        return f"first failure: a rank, or the launcher of the ranks, ended with status {status}"
    who = f"rank {crashes[0].stem.removeprefix('rank-')}" if crashes else "a rank"
    lines = [f"first failure: {who} was killed by signal {number} ({signal.Signals(number).name})"]
    return "\n".join(lines + [path.read_text(errors="replace").rstrip() for path in crashes[:1]])
