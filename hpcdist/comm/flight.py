"""Flight recorders of many ranks, merged: which calls are waited in, and who has not come. Needs no MPI."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hpcdist.comm.members import members_of
from hpcdist.comm.recorder import EXIT, NUM_RECORDS, Entry, Ring, read

__all__ = ["SILENT_S", "Flight", "Wait", "is_exit", "is_message", "load"]

SILENT_S = 5.0
"""A rank gives a sign of life each second, unless it is stopped, dead, or in a call that holds Python's lock."""

_MESSAGES = ("send", "recv")


class Wait(NamedTuple):
    """A call that ranks stand in.

    Attributes
    ----------
    entries : dict of int to Entry
        The call as each rank of the world recorded that stands in it, or gave up waiting.
    others : dict of int to Entry
        The same of those that have been there, and gone on.
    missing : list of int
        Those that have not come.
    since : float
        When the first of those that stand there began, in seconds since the epoch.
    """

    entries: dict[int, Entry]
    others: dict[int, Entry]
    missing: list[int]
    since: float

    @property
    def first(self) -> Entry:
        """The call, as the rank recorded that has waited longest."""
        return min(self.entries.values(), key=lambda entry: entry.start)

    def speaker(self, reach: int) -> int | None:
        """Return the rank that has waited longest, of those that are among the first ``reach`` of their group."""
        members = members_of(self.first.members)[:reach]
        ranks = [rank for rank in self.entries if rank in members or not members]
        return min(ranks, key=lambda rank: (self.entries[rank].start, rank), default=None)

    @property
    def verbs(self) -> dict[str, list[int]]:
        """Which ranks called what, where it should be the same on all."""
        found: dict[str, list[int]] = defaultdict(list)
        for rank, entry in sorted({**self.others, **self.entries}.items()):
            found[entry.verb].append(rank)
        return dict(found)


class Flight:
    """The records of the ranks of one job.

    Parameters
    ----------
    rings : iterable of Ring
        One a rank, as far as there are any.
    now : float, optional
        Seconds since the epoch. Default: now if the job is alive, else its last sign of life.

    Attributes
    ----------
    rings : dict of int to Ring
        By rank.
    size : int
        Number of ranks in the world.
    is_over : bool
        Whether all processes are gone, as far as can be seen from here.
    now : float
    folders : list of Path
        Where the files lie.
    """

    def __init__(self, rings: Iterable[Ring], now: float | None = None, folders: Iterable[Path] = ()) -> None:
        self.folders = list(folders)
        self.rings = {ring.rank: ring for ring in sorted(rings, key=lambda ring: ring.rank)}
        self.size = max((ring.size for ring in self.rings.values()), default=0)
        self.is_over = all(self.process_state(rank) == "gone" for rank in self.rings)
        self.now = self._find_now() if now is None else now

    def _find_now(self) -> float:
        last = max((time_ for ring in self.rings.values() for time_ in _times(ring)), default=0.0)
        now = time.time()
        return last if self.is_over or now - last > SILENT_S else now

    # ---- one rank
    def last(self, rank: int) -> Entry | None:
        """Return the last call of a rank, or None."""
        return self.rings[rank].entries[-1] if rank in self.rings and self.rings[rank].entries else None

    def standing(self, rank: int) -> list[Entry]:
        """Return the calls that a rank has begun and not ended, and the one it failed in if it has made none since."""
        entries = self.rings[rank].entries
        return [entry for entry in entries if entry.end == 0 or (entry.end < 0 and entry is entries[-1])]

    def silent_s(self, rank: int) -> float:
        """Return for how long a rank has given no sign of life; 0 if that means nothing."""
        ring = self.rings[rank]
        elapsed_s = self.now - max(ring.beat, ring.ended)
        return elapsed_s if elapsed_s > SILENT_S and not ring.ended else 0.0

    def process_state(self, rank: int) -> str:
        """Return "stopped", "gone", or "" for a process that runs or cannot be seen from here."""
        ring = self.rings[rank]
        if ring.host != socket.gethostname():
            return ""
        try:
            state = Path(f"/proc/{ring.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "gone"
        return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(state, "")

    # ---- all
    def waits(self) -> list[Wait]:
        """Return the calls that ranks stand in, the oldest first: of each group that of which most is known.

        That some ranks have come to their end comes last.
        """
        found = [*self._collectives(), *self._messages()]
        return sorted(found, key=lambda wait: (is_exit(wait.first), wait.since))

    def wait_of(self, rank: int, ticket: int) -> Wait | None:
        """Return the wait that a call of a rank is part of, None if it is over."""
        for wait in self.waits():
            if rank in wait.entries and wait.entries[rank].ticket == ticket:
                return wait
        return None

    def _collectives(self) -> Iterator[Wait]:
        groups: dict[str, dict[int, dict[int, Entry]]] = defaultdict(lambda: defaultdict(dict))
        for rank in self.rings:
            for entry in self.standing(rank):
                if not is_message(entry):
                    groups[entry.members][entry.number][rank] = entry
        for members, calls in groups.items():
            waits = [self._wait(members, number, calls[number]) for number in sorted(calls)]
            yield next((wait for wait in waits if wait.missing or len(wait.verbs) > 1), waits[0])

    def _wait(self, members: str, number: int, entries: dict[int, Entry]) -> Wait:
        others: dict[int, Entry] = {}
        missing: list[int] = []
        unknown: list[int] = []
        for rank in members_of(members) or list(self.rings):
            if rank in entries:
                continue
            calls = self._of(rank, members)
            reached = [entry for entry in calls if entry.number >= number]
            if reached and reached[0].number == number:
                others[rank] = reached[0]
            elif not reached:
                (missing if calls or self._is_complete(rank) else unknown).append(rank)
        return Wait(entries, others, missing or unknown, min(entry.start for entry in entries.values()))

    def _is_complete(self, rank: int) -> bool:
        """Say whether all calls of a rank are known, and not only its last."""
        return rank not in self.rings or not self.rings[rank].entries or self.rings[rank].entries[0].ticket == 1

    def _of(self, rank: int, members: str) -> list[Entry]:
        entries = self.rings[rank].entries if rank in self.rings else []
        return [entry for entry in entries if entry.members == members and not is_message(entry)]

    def _messages(self) -> Iterator[Wait]:
        """Yield the oldest message that each rank has under way."""
        for rank in self.rings:
            messages = [entry for entry in self.standing(rank) if is_message(entry)]
            if messages:
                entry = messages[0]
                peer = entry.peers.removeprefix("rank ")
                group = members_of(entry.members)
                missing = [group[int(peer)]] if peer.isdecimal() and int(peer) < len(group) else []
                yield Wait({rank: entry}, {}, missing, entry.start)


def is_message(entry: Entry) -> bool:
    """Say whether a call concerns two ranks, not all of the group."""
    return entry.verb in _MESSAGES


def is_exit(entry: Entry) -> bool:
    """Say whether a call stands for the end of the program."""
    return entry.verb == EXIT


def _times(ring: Ring) -> Iterator[float]:
    yield from (ring.time, ring.beat, ring.ended)
    yield from itertools.chain.from_iterable((entry.start, abs(entry.end)) for entry in ring.entries)


def load(folder: str | os.PathLike[str], num_last: int = NUM_RECORDS) -> Flight:
    """Return what the ring files in ``folder`` say; those of an older job of another size are left out.

    Parameters
    ----------
    num_last : int
        How many calls of each rank are wanted.

    Raises
    ------
    OSError
        If the folder cannot be read.
    """
    rings, homes = [], _homes(Path(folder))
    for path in (path for home in homes for path in sorted(home.glob("rank-*.flight"))):
        with suppress(OSError, ValueError):  # of a rank that has just begun, or moves it elsewhere
            rings.append(read(path, num_last))
    size = max(rings, key=lambda ring: ring.time).size if rings else 0
    return Flight((ring for ring in rings if ring.size == size), folders=homes)


def _homes(folder: Path) -> list[Path]:
    """Return the folders that hold the files, or those that links lead to: other machines could leave no link here."""
    names = [name for name in os.listdir(folder) if name.startswith("rank-") and name.endswith(".flight")]  # noqa: PTH208
    return sorted({(folder / name).resolve().parent for name in names})
