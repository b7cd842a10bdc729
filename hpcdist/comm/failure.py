"""What a failing rank says, and what it leaves for the launcher, before the whole job ends."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from hpcdist import config
from hpcdist.comm.launched import launched

__all__ = ["exit_code", "report_failure"]

_INTERRUPTED = 130
_ECHO_S = 5.0
"""Ranks that share an error leave it to one of them to tell, which ends them all within this time."""


def exit_code(error: BaseException) -> int:
    """Return the exit code that Python gives a process which ends by ``error``; 0 for ``sys.exit(0)``."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def report_failure(error: BaseException) -> int:
    """Make a failure of this rank known, once, and return the exit code for the whole job.

    Under ``hpcdist launch`` a report goes to the launcher, which prints the first one last; otherwise the traceback
    is printed here. Output is flushed, since the end of the job may not leave time for it.

    Parameters
    ----------
    error : BaseException
        What ended the job on this rank.
    """
    if getattr(error, "echo", False):
        time.sleep(_ECHO_S)
    code = exit_code(error)
    place = launched(os.environ)
    report = {
        "rank": place.rank if place else 0,
        "size": place.size if place else 1,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.time(),
        "kind": type(error).__name__,
        "exit_code": code,
        "signal": None,
        "traceback": _text(error),
    }
    sys.stdout.flush()
    if not _leave(report):
        who = f"rank {report['rank']} of {report['size']} ({report['host']}, pid {report['pid']})"
        print(f"{who}: {report['kind']}\n{report['traceback']}", end="", file=sys.stderr, flush=True)  # noqa: T201
    return code


def _text(error: BaseException) -> str:
    """Return the traceback, from the job's first line on; of ``sys.exit`` only its message and where it was called."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if isinstance(error, SystemExit):
        return _describe_exit(error)
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def _describe_exit(error: SystemExit) -> str:
    message = error.code if isinstance(error.code, str) else f"sys.exit({error.code})"
    frames = [] if hasattr(error, "echo") else traceback.extract_tb(error.__traceback__)  # ranks shared it: no place
    where = [frame for frame in frames if not _is_ours(frame.filename)][-1:]
    return "\n".join([message, *(f"  at {frame.filename}, line {frame.lineno}" for frame in where), ""])


def _is_ours(filename: str) -> bool:
    """Say whether a frame only leads to the job: Python's runner of scripts, or this package."""
    return filename == "<frozen runpy>" or Path(filename).is_relative_to(Path(__file__).parents[1])


def _leave(report: dict[str, Any]) -> bool:
    """Write the report where the launcher looks for it; say whether that worked."""
    folder = config.environment().error_dir
    if folder is None:
        return False
    path = Path(folder) / f"rank-{report['rank']}.json"
    try:
        if not path.exists():  # the first failure of a rank is the one that counts
            path.with_suffix(".part").write_text(json.dumps(report))
            path.with_suffix(".part").rename(path)
    except OSError:
        return False
    return True
