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


class Progress:
    """Show step, loss, tokens per second and the time left. A context manager.

    On a terminal one line is rewritten in place. Elsewhere (a batch system's log) a plain line comes with the first and
    the last step, and between them about twenty in a run, or one a minute in a long run; more often at the beginning,
    but never within 2 s.

    Parameters
    ----------
    total_steps : int
        The step the run ends at.
    stream : text stream, optional
        None: standard error.
    enabled : bool
        False: say nothing; for ranks other than 0.
    clock : callable
        Seconds from any origin.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        *,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_steps = total_steps
        self._stream = sys.stderr if stream is None else stream
        self._enabled, self._clock = enabled, clock
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._first: tuple[float, int] | None = None
        self._shown_at = -float("inf")
        self._line = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Show where the run is after ``step`` steps."""
        now = self._clock()
        if self._first is None:
            self._first = now, step
        left_s = self._left_s(step, now)
        if not self._enabled or not (self._live or self._due(step, now, left_s)):
            return
        self._shown_at = now
        self._show(
            f"step {step:>{len(str(self.total_steps))}}/{self.total_steps}  loss {loss:.4f}  "
            f"{tokens_per_s:,.0f} tokens/s  " + ("done" if step >= self.total_steps else f"{_duration(left_s)} left")
        )

    def say(self, text: str) -> None:
        """Print ``text`` as a line of its own, above the live line."""
        if self._enabled:
            line, self._line = self._line, ""
            self._write(f"{_ERASE if line else ''}{text}\n")
            if line:
                self._show(line)

    def close(self) -> None:
        """End the live line."""
        if self._line:
            self._line = ""
            self._write("\n")

    def _left_s(self, step: int, now: float) -> float | None:
        """Return the seconds left at the pace since the first update; None before there is a pace."""
        assert self._first is not None
        start, first = self._first
        return (now - start) / (step - first) * max(self.total_steps - step, 0) if step > first else None

    def _due(self, step: int, now: float, left_s: float | None) -> bool:
        """Say whether it is time for a plain line."""
        assert self._first is not None
        past_s = now - self._first[0]
        period_s = max(_LEAST_S, min((past_s + (left_s or 0.0)) / _LINES, past_s / 2, _MOST_S))
        return step >= self.total_steps or now - self._shown_at >= period_s

    def _show(self, line: str) -> None:
        if not self._live:
            self._write(f"{line}\n")
            return
        self._line = line
        width = shutil.get_terminal_size().columns
        self._write(f"{_ERASE}{line[: width - 1]}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _duration(seconds: float | None) -> str:
    """Return a time as people read it: 42 s, 3:05 min, 1:02 h."""
    if seconds is None:
        return "? s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    big, small, unit = (*divmod(whole, 60), "min") if whole < 3600 else (*divmod(whole // 60, 60), "h")
    return f"{big}:{small:02d} {unit}"
