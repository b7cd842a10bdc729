"""The hosts that a launch may use, as Open MPI's and MPICH's host files name them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hpcdist.errors import LaunchError, explain

__all__ = ["Host", "read_hosts"]

_LINE = re.compile(r"(?P<name>[^\s:#=]+)(:(?P<hydra>\d+))?(\s+.*?slots\s*=\s*(?P<slots>\d+))?")


@dataclass(frozen=True)
class Host:
    """A machine and how many ranks it is to take; None: as many as it has cores."""

    name: str
    slots: int | None = None


def read_hosts(path: Path) -> tuple[Host, ...]:
    """Read a host file: a name a line, then perhaps ``slots=4`` (Open MPI) or ``:4`` (MPICH); ``#`` starts a comment.

    Raises
    ------
    LaunchError
        If the file cannot be read or names no host.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(
            explain("the host file cannot be read", got=error, do="give --hostfile a text file")
        ) from error
    hosts = tuple(_host(path, line) for line in lines if line)
    if not hosts:
        raise LaunchError(explain("the host file names no host", got=path, expected="one host a line"))
    return hosts


def _host(path: Path, line: str) -> Host:
    found = _LINE.match(line)
    if not found:
        raise LaunchError(
            explain("the host file has a line that makes no sense", got=f"{path}: {line!r}", expected="HOST slots=N")
        )
    slots = found["hydra"] or found["slots"]
    return Host(found["name"], int(slots) if slots else None)
