"""SIGUSR2: a rank says where it is, also while its main thread is inside a blocking call of MPI.

A Python handler runs in the main thread, and only between two steps of the interpreter. So the signal only wakes a
thread (``signal.set_wakeup_fd``), which prints the rank, its calls under way, and the stacks of all threads. Where a
thread holds Python's lock that one cannot run either: there ``faulthandler`` writes the stack of the thread that gets
the signal, which is the main one, to ``stacks-R.txt`` beside the flight recorder's file, or to stderr if there is none.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from hpcdist.comm.recorder import process_recorder

__all__ = ["close", "install", "move_beside", "report"]

_SIGNAL = signal.SIGUSR2


class _Answer:
    """How this process answers: its name, whether it does, and the file for faulthandler."""

    who = ""
    installed = False
    file: IO[bytes] | None = None


def install(rank: int, size: int) -> None:
    """Answer SIGUSR2 from now on, unless the program does itself; let a crash leave its Python stack on stderr."""
    _Answer.who = f"rank {rank} of {size} ({os.uname().nodename}, pid {os.getpid()})"
    with suppress(OSError, ValueError, AttributeError):  # stderr may be closed, or no file
        if not faulthandler.is_enabled():
            faulthandler.enable()
    if not _is_free():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # what writes to the pipe is the part of a handler that is in C
    signal.signal(_SIGNAL, lambda *_: _answer_late(writer))
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _Answer.installed = True
    move_beside(process_recorder().path)
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_watch, args=(reader,), name="hpcdist-signals", daemon=True).start()


def _is_free() -> bool:
    """Say whether nobody listens to the signal, nor to signals in general."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
        return False
    before = signal.set_wakeup_fd(-1)
    if before != -1:
        signal.set_wakeup_fd(before)
    return before == -1


def _answer_late(writer: int) -> None:
    """Answer from the main thread, if the program has taken the pipe away, as asyncio does; take it back if it can."""
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before not in (writer, -1):
        signal.set_wakeup_fd(before)
    if before != writer:
        report()


def _forget() -> None:
    """Leave the pipe to the parent, in a process that was forked."""
    signal.set_wakeup_fd(-1)
    signal.signal(_SIGNAL, signal.SIG_DFL)
    _Answer.installed = False


def move_beside(ring: Path | None) -> None:
    """Let faulthandler write beside the flight recorder's file, or to stderr where there is none."""
    if not _Answer.installed:
        return
    file = None if ring is None else ring.with_name(f"stacks-{ring.stem.removeprefix('rank-')}.txt").open("ab")
    with suppress(OSError, ValueError, AttributeError):
        # not of all threads: one that ends in that moment would be followed into freed memory
        faulthandler.register(_SIGNAL, file=sys.stderr if file is None else file, all_threads=False, chain=True)
    left, _Answer.file = _Answer.file, file
    if left is not None:
        left.close()
        with suppress(OSError):
            if not Path(left.name).stat().st_size:
                Path(left.name).unlink()


def close() -> None:
    """Leave no empty file behind."""
    move_beside(None)


def _watch(reader: int) -> None:
    while True:
        if _SIGNAL in os.read(reader, 64):
            report()


def report() -> None:
    """Print to stderr who this rank is, its calls under way, and the stacks of its threads, in one piece."""
    text = "\n".join([f"{_Answer.who}: {_calls()}", *_stacks(), ""])
    if _Answer.file is not None:
        _Answer.file.write(f"\n{time.strftime('%F %T')} {text}\n".encode())
        _Answer.file.flush()
    sys.stderr.write(text)
    sys.stderr.flush()


def _calls() -> str:
    calls = process_recorder().under_way.copy().values()
    if not calls:
        return "in no call"
    now = time.monotonic()
    return "; ".join(
        f"in {c.operation.verb} no. {c.operation.number} of group {c.operation.group!r} at {c.operation.site}"
        + (f" for {now - c.since:.1f} s" if c.since < now else "")
        for c in calls
    )


def _stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            yield f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
