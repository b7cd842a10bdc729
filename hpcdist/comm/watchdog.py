"""The watchdog: a thread that says, while a rank waits for others, whom it waits for, and what those did last.

It looks at the flight recorder once a second and never calls MPI, so it works at every thread level and while the main
thread is inside a blocking call of MPI. A call that can raise no error because MPI has it is given up some seconds
after its time limit: the job ends, where hpcdist owns the world.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpcdist import config
from hpcdist.comm import flight, flight_folder
from hpcdist.comm.flight_report import sentence
from hpcdist.comm.recorder import EXIT, Call, Recorder, process_recorder
from hpcdist.errors import DistTimeoutError, explain

__all__ = ["GRACE_S", "Watchdog", "own", "remark", "start"]

GRACE_S = 5.0
"""How long after its time limit a call is given up that should have ended by itself."""
_INTERVAL_S = 1.0
_REACH = 8
"""How many ranks of a group read the records of all others to report a call first; the square of it next, and so on."""
_NUM_LAST = 100
"""Calls of each rank that they read."""

_log = logging.getLogger("hpcdist.comm")


class Watchdog:
    """What the thread knows.

    Parameters
    ----------
    recorder : Recorder
    rank, size : int
        Of this process in the world.
    late_s : float
        A wait is reported when it has lasted this long, and each time it has lasted twice as long.

    Attributes
    ----------
    end_job : callable or None
        Ends the job with an error, where hpcdist owns the world.
    """

    def __init__(self, recorder: Recorder, rank: int, size: int, late_s: float) -> None:
        self._recorder, self._rank, self._size, self._late_s = recorder, rank, size, late_s
        self.end_job: Callable[[BaseException], object] | None = None
        self._due: dict[int, float] = {}
        self._seen = self._flushed = 0
        self._remarked = -math.inf

    def run(self) -> None:
        """Look, again and again."""
        interval_s = min(_INTERVAL_S, self._late_s / 4)
        while True:
            time.sleep(interval_s)
            try:
                self.look()
            except Exception:  # in a thread it would end the job, which is not what a watchdog is for
                _log.exception("rank %d of %d: the watchdog stumbled", self._rank, self._size)

    def look(self) -> None:
        """Report calls that are late; give up those that MPI does not return from."""
        self._recorder.beat()
        self._flush_when_quiet()
        now, under_way = time.monotonic(), self._recorder.under_way.copy()
        self._due = {ticket: due for ticket, due in self._due.items() if ticket in under_way}
        for ticket, call in under_way.items():
            waited_s = now - call.since
            if waited_s > call.limit_s + GRACE_S and self.end_job is not None:
                self.end_job(self._given_up(call, self._describe(ticket, call, waited_s)))
            elif waited_s >= self._due.get(ticket, self._late_s):
                doublings = math.floor(math.log2(waited_s / self._late_s))
                self._due[ticket] = self._late_s * 2 ** (doublings + 1)
                if call.operation.rank < _REACH ** (doublings + 1):
                    self._tell(self._describe(ticket, call, waited_s, _REACH ** (doublings + 1)))

    def remark(self, text: str) -> None:
        """Pass on what a wait has found out by itself; where there are files, those say more."""
        if self._recorder.path is None:
            self._remarked = time.monotonic()
            self._tell(text)

    def _flush_when_quiet(self) -> None:
        last = self._recorder.last
        if last == self._seen != self._flushed:
            self._recorder.flush()
            self._flushed = last
        self._seen = last

    def _tell(self, text: str) -> None:
        """Warn; without any logging set up only where the program is ours to speak for."""
        if text and (self.end_job is not None or _log.hasHandlers()):
            _log.warning("rank %d of %d: %s", self._rank, self._size, text)

    def _describe(self, ticket: int, call: Call, waited_s: float, reach: int | None = None) -> str:
        """Return what to say about a call; nothing if another of the first ``reach`` ranks says the same."""
        path = self._recorder.path
        with suppress(OSError):
            merged = None if path is None else flight.load(path.parent, _NUM_LAST)
            wait = None if merged is None else merged.wait_of(self._rank, ticket)
            if merged is not None and wait is not None:
                is_told = reach is not None and wait.speaker(reach) != self._rank
                return "" if is_told else sentence(merged, wait)
        if reach is not None and time.monotonic() - self._remarked < self._late_s:
            return ""
        o = call.operation
        if o.verb == EXIT:
            return f"has come to the end of the program, and waited for {waited_s:.1f} s for {o.peers} to come there"
        array = "" if o.shape is None else f"{o.dtype} {o.shape}, "
        what = f"{o.verb} no. {o.number} of group {o.group!r} ({array}{Path(o.site).name})"
        return f"has waited for {waited_s:.1f} s in {what} for {o.peers}"

    def _given_up(self, call: Call, text: str) -> DistTimeoutError:
        what = f"{call.operation}: not done within {call.limit_s:g} s, and MPI does not return"
        do = "find out what keeps the others, or allow more time (timeout_s)"
        return DistTimeoutError(explain(what, got=f"{text} Called at {call.operation.site}", do=do))


_started: list[Watchdog] = []


def remark(text: str) -> None:
    """Let the watchdog, which knows whether anybody wants to hear it, pass on what a wait has found out by itself."""
    for watchdog in _started:
        watchdog.remark(text)


def start(rank: int, size: int) -> None:
    """Watch over the calls of this process, rank ``rank`` of ``size`` in the world, from now on."""
    if _started:
        return
    flight_folder.open_given(rank, size)
    watchdog = Watchdog(process_recorder(), rank, size, config.environment().late_s)
    _started.append(watchdog)
    os.register_at_fork(after_in_child=_started.clear)  # threads stay behind
    threading.Thread(target=watchdog.run, name="hpcdist-watchdog", daemon=True).start()


def own(end_job: Callable[[BaseException], object]) -> None:
    """Let the watchdog speak without logging, and end the job by ``end_job``: hpcdist owns the world."""
    for watchdog in _started:
        watchdog.end_job = end_job
