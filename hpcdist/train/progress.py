"""How far the run is: one live line on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["Progress"]

_ERASE = "\r\x1b[K"
_LEAST_S, _MOST_S, _LINES = 2.0, 60.0, 20
_LIVE_S = 0.1


class Progress:
    """Show step, loss, rate and the time left. A context manager.

    On a terminal one line is rewritten in place, at most ten times a second. Elsewhere (a batch system's log) a plain
    line comes with the first and the last step, and between them about twenty in a run, or one a minute in a long run;
    more often at the beginning, but never within 2 s.

    Parameters
    ----------
    total_steps : int
        The step the run ends at.
    stream : text stream, optional
        Receives everything. None: lines go to standard output, the live line to standard error if that is a terminal.
    enabled : bool
        False: say nothing; for ranks other than 0.
    unit : str
        What the rate counts, in the plural.
    clock : callable
        Seconds from any origin.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        *,
        enabled: bool = True,
        unit: str = "tokens",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_steps, self.unit = total_steps, unit
        # mpirun gives a rank a terminal as standard output, whatever its own is; only standard error tells
        self._log, self._screen = (sys.stdout, sys.stderr) if stream is None else (stream, stream)
        self._enabled, self._clock = enabled, clock
        self._live = self._screen is not None and self._screen.isatty() and os.environ.get("TERM") != "dumb"
        self._first: tuple[float, int] | None = None
        self._shown_at = -float("inf")
        self._line = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self, step: int, loss: float, rate_per_s: float) -> None:
        """Show where the run is after ``step`` steps."""
        now = self._clock()
        if self._first is None:
            self._first = now, step
        left_s = self._left_s(step, now)
        if not self._enabled or not self._due(step, now, left_s):
            return
        self._shown_at = now
        parts = [f"step {step:>{len(str(self.total_steps))}}/{self.total_steps}", f"loss {loss:.4f}"]
        parts.append(f"{rate_per_s:,.0f} {self.unit}/s")
        if step >= self.total_steps:
            parts.append("done")
        elif left_s is not None:
            parts.append(f"{_duration(left_s)} left")
        self._show("  ".join(parts))

    def say(self, text: str) -> None:
        """Print ``text`` as a line of its own, above the live line."""
        if self._enabled:
            line, self._line = self._line, ""
            if line:
                self._write(self._screen, _ERASE)
            self._write(self._log, f"{text}\n")
            if line:
                self._show(line)

    def close(self) -> None:
        """End the live line."""
        if self._line:
            self._line = ""
            self._write(self._screen, "\n")

    def _left_s(self, step: int, now: float) -> float | None:
        """Return the seconds left at the pace since the first update; None before there is a pace."""
        assert self._first is not None
        start, first = self._first
        return (now - start) / (step - first) * max(self.total_steps - step, 0) if step > first else None

    def _due(self, step: int, now: float, left_s: float | None) -> bool:
        """Say whether it is time to show the run."""
        assert self._first is not None
        since_s, past_s = now - self._shown_at, now - self._first[0]
        if self._live:
            return step >= self.total_steps or since_s >= _LIVE_S
        period_s = max(_LEAST_S, min((past_s + (left_s or 0.0)) / _LINES, past_s / 2, _MOST_S))
        return step >= self.total_steps or since_s >= period_s

    def _show(self, line: str) -> None:
        if not self._live:
            self._write(self._log, f"{line}\n")
            return
        self._line = line
        width = shutil.get_terminal_size().columns
        self._write(self._screen, f"{_ERASE}{line[: width - 1]}")

    @staticmethod
    def _write(stream: TextIO | None, text: str) -> None:
        """Write what the stream's encoding has: a sample of text must not end a run in a Latin-1 locale."""
        if stream is None:  # closed, as in a daemon
            return
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()


def _duration(seconds: float) -> str:
    """Return a time as people read it: 42 s, 3:05 min, 1:02 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    big, small, unit = (*divmod(whole, 60), "min") if whole < 3600 else (*divmod(whole // 60, 60), "h")
    return f"{big}:{small:02d} {unit}"
