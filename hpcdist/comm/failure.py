"""What a failing rank says, and what it leaves for the launcher, before the whole job ends."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcdist import config
from hpcdist.comm.launched import launched
from hpcdist.errors import CollectiveMismatchError

__all__ = ["exit_code", "flush", "report_failure", "say", "told_by_program"]

_INTERRUPTED = 130
_STDOUT, _STDERR = 1, 2
_ECHO_S = 5.0
"""Ranks that share an error leave it to one of them to tell, which ends them all within this time."""
_MISMATCH_S = 1.0
"""The same of an error that all ranks of a group find out at the same time."""


def exit_code(error: BaseException) -> int:
    """Return the exit code that Python gives a process which ends by ``error``; 0 for ``sys.exit(0)``."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def report_failure(error: BaseException, *, shown: bool = False) -> int:
    """Make a failure of this rank known, once, and return the exit code for the whole job. Never raises.

    Under ``hpcdist launch`` a report goes to the launcher, which prints the first one last; otherwise the traceback
    is printed here. Output is flushed, since the end of the job may not leave time for it.

    Parameters
    ----------
    error : BaseException
        What ended the job on this rank.
    shown : bool
        Whether the program's own hook has printed the traceback.
    """
    code, place = exit_code(error), launched(os.environ)
    time.sleep(_delay_s(error, place.rank if place else 0))
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
    flush()
    if not _leave(report):
        who = f"rank {report['rank']} of {report['size']} ({report['host']}, pid {report['pid']})"
        say(f"{who}: {report['kind']}\n{'' if shown else report['traceback']}")
    return code


def _delay_s(error: BaseException, rank: int) -> float:
    """Return how long this rank leaves it to others to tell of an error that it shares with them."""
    if isinstance(error, CollectiveMismatchError) and rank > 0:
        return _MISMATCH_S
    return _ECHO_S if getattr(error, "echo", False) else 0.0


def flush() -> None:
    """Write out what has been printed, as far as there is still a place for it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, gone, closed
            stream.flush()


def say(text: str) -> None:
    """Print to stderr; if the program has closed that, where it was, else to stdout. Never raises."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
        return
    for descriptor in (_STDERR, _STDOUT):
        with suppress(OSError):
            os.write(descriptor, text.encode(errors="backslashreplace"))
            return


def told_by_program(error: BaseException) -> bool:
    """Let a ``sys.excepthook`` that the program has set see the error; say whether there is one."""
    if sys.excepthook is sys.__excepthook__:
        return False
    with suppress(Exception):
        sys.excepthook(type(error), error, _from_job(error))
    return True


def _text(error: BaseException) -> str:
    """Return the traceback, from the job's first line on; of ``sys.exit`` only its message and where it was called."""
    if isinstance(error, SystemExit):
        return _describe_exit(error)
    return "".join(traceback.format_exception(type(error), error, _from_job(error)))


def _from_job(error: BaseException) -> TracebackType | None:
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames or error.__traceback__


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
