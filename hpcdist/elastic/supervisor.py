"""One child that starts all the others: its signals, its end, and the end of everything it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from hpcdist.backends.parent import die_with_parent
from hpcdist.elastic import processes

__all__ = ["Supervisor"]

_POLL_S = 0.1
_GRACE_S = 5.0
_PATIENCE_S = 3.0
_ORPHANS_S = 1.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FORWARDED = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)


class Supervisor:
    """Runs a command in a session of its own and leaves no process of it behind, whatever happens.

    Parameters
    ----------
    argv, variables
        The command and its environment.
    mark : str
        ``NAME=value`` that only this command and its children have in their environment.
    has_failed : function
        Says whether a rank has reported a failure: the others then get three seconds to end with it.
    deliver : function, optional
        ``deliver(pid, number)`` passes a signal on; default: to the child, whose id ``pid`` is.
    last_signal : signal.Signals
        What the child gets if this process dies.

    Attributes
    ----------
    ended_by : signal.Signals or None
        The signal that asked this process to end the job.
    """

    def __init__(
        self,
        argv: list[str],
        variables: Mapping[str, str],
        *,
        mark: str,
        has_failed: Callable[[], bool],
        deliver: Callable[[int, signal.Signals], None] = os.kill,
        last_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.argv, self.variables, self.mark = argv, dict(variables), mark
        self.has_failed, self.deliver, self.last_signal = has_failed, deliver, last_signal
        self.ended_by: signal.Signals | None = None
        self._received: deque[signal.Signals] = deque()
        self._deadline = float("inf")

    def run(self) -> int:
        """Run the command and return its exit status; -n if signal n killed it."""
        with self._receiving():
            child = self._start()
            try:
                self._watch(child)
            finally:
                self._end(child)
        return child.returncode

    def _start(self) -> subprocess.Popen[bytes]:
        launcher = os.getpid()
        return subprocess.Popen(
            self.argv,
            env=self.variables,
            # a process outside the terminal's session cannot read from it
            stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(self.last_signal, launcher),
        )

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        """Wait until the child has ended or its time is up; pass signals on meanwhile."""
        while time.monotonic() < self._deadline:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_POLL_S)
                return
            while self._received:
                self._pass_on(child, self._received.popleft())
            if self.has_failed():
                self._end_within(_PATIENCE_S)

    def _pass_on(self, child: subprocess.Popen[bytes], number: signal.Signals) -> None:
        if number in _ENDING:
            self._end_within(_GRACE_S if self.ended_by is None else 0.0)
            self.ended_by = self.ended_by or number
        self.deliver(child.pid, number)

    def _end_within(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        if child.poll() is None and self.ended_by is None:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_S)
        if child.poll() is None:
            child.kill()
        processes.end_marked(self.mark, _ORPHANS_S)
        child.wait()

    @contextmanager
    def _receiving(self) -> Iterator[None]:
        """Collect the signals that are to be passed on; those that are ignored (nohup) stay ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        taken = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        before = {
            number: signal.signal(number, lambda n, _: self._received.append(signal.Signals(n))) for number in taken
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
