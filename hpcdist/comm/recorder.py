"""The flight recorder: the last calls of this rank, in a ring that may lie in a file and then survives the rank."""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import math
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hpcdist.comm.operation import Operation

__all__ = ["EXIT", "NUM_RECORDS", "Call", "Entry", "Recorder", "Ring", "process_recorder", "read", "words"]

NUM_RECORDS = 1000
EXIT = "exit"
"""The verb of ranks that have come to their end, and wait for the others to come there."""
_MAGIC = b"hpcdist flight 2\n"
_HEADER_BYTES, _RECORD_BYTES = 512, 256
_LIFE = struct.Struct("<dd")  # last sign of life, end of the process
_LIFE_AT, _ABOUT_AT = 32, 64
_TEXT_BYTES = _RECORD_BYTES - 34
_RECORD = struct.Struct(f"<QddQH{_TEXT_BYTES}s")  # ticket, start, end, number, length of the text, text
_TICKET = struct.Struct("<Q")
_END = struct.Struct("<d")
_END_AT = 16
_NUM_BYTES = _HEADER_BYTES + NUM_RECORDS * _RECORD_BYTES

# looked up once: begin and end cost every call of a verb
_pack_record, _pack_end, _now, _clock = _RECORD.pack_into, _END.pack_into, time.time, time.monotonic
_new = tuple.__new__


class Entry(NamedTuple):
    """One call, as recorded.

    Attributes
    ----------
    ticket : int
        Position among all calls of the rank, from 1.
    start, end : float
        Seconds since the epoch; ``end`` is 0 while the call is under way, and negative if it failed then.
    number : int
        Position among the collectives, or among the messages, on its group.
    verb, group, members, shape, dtype, nbytes, peers, site : str
        As of the operation; ``members`` are the ranks of the group in the world, see :func:`begin <Recorder.begin>`.
    """

    ticket: int
    start: float
    end: float
    number: int
    verb: str
    group: str
    members: str
    shape: str
    dtype: str
    nbytes: str
    peers: str
    site: str


class Call(NamedTuple):
    """A call under way, as the process sees it.

    Attributes
    ----------
    operation : Operation
    members : str
        The ranks of its group.
    since : float
        When somebody began to wait for it (``time.monotonic``); infinity if nobody has.
    limit_s : float
        How long MPI may take; infinity if the wait itself has a limit.
    """

    operation: Operation
    members: str
    since: float
    limit_s: float


class Recorder:
    """The last thousand calls of one process; begins in memory, and moves to a file when there is a folder for it.

    Attributes
    ----------
    under_way : dict of int to Call
        Calls that have not ended, by ticket.
    path : Path or None
        The file, if there is one.
    last : int
        The ticket given last.
    """

    def __init__(self) -> None:
        self._memory: Any = bytearray(_NUM_BYTES)
        self._tickets = itertools.count(1)
        self._moving = threading.Lock()
        self.under_way: dict[int, Call] = {}
        self.path: Path | None = None
        self.last = 0

    def begin(self, operation: Operation, members: str, *, limit_s: float | None = None) -> int:
        """Record that a call begins; return its ticket. Never blocks.

        Parameters
        ----------
        members : str
            The ranks of the group in the world, ``"0-3"`` or ``"0,2,5"``, and ``"#2"`` behind that if it is the second
            group of these ranks.
        limit_s : float, optional
            When a call that blocks should have ended. Default: it was posted, and nobody waits for it yet.
        """
        o = operation
        text = words(o.verb, o.group, members, o.shape, o.dtype, o.peers, o.site)
        return self.enter(text, operation, members, limit_s)

    def enter(self, text: bytes, operation: Operation, members: str, limit_s: float | None) -> int:
        """Do as :meth:`begin` does, with the words of the record at hand."""
        self.last = ticket = next(self._tickets)
        at = _HEADER_BYTES + ticket % NUM_RECORDS * _RECORD_BYTES
        _pack_record(self._memory, at, ticket, _now(), 0.0, operation.number, len(text), text)
        call = (operation, members, math.inf, math.inf) if limit_s is None else (operation, members, _clock(), limit_s)
        self.under_way[ticket] = _new(Call, call)
        return ticket

    def wait(self, ticket: int, elapsed_s: float) -> None:
        """Note that somebody has waited ``elapsed_s`` seconds for a call that was posted."""
        call = self.under_way.get(ticket)
        if call is not None:
            self.under_way[ticket] = call._replace(since=min(call.since, _clock() - elapsed_s))

    def end(self, ticket: int, *, failed: bool = False) -> None:
        """Record that a call has ended. Never blocks."""
        if self.under_way.pop(ticket, None) is not None and self.last - ticket < NUM_RECORDS:
            at = _HEADER_BYTES + ticket % NUM_RECORDS * _RECORD_BYTES + _END_AT
            _pack_end(self._memory, at, -_now() if failed else _now())

    def beat(self) -> None:
        """Leave a sign of life."""
        _END.pack_into(self._memory, _LIFE_AT, _now())

    def close(self) -> None:
        """Note that the process ends."""
        _LIFE.pack_into(self._memory, _LIFE_AT, _now(), _now())

    def flush(self) -> None:
        """Let other machines see the file, as far as its file system does such things."""
        if isinstance(self._memory, mmap.mmap):
            self._memory.flush()

    # ---- where it lies
    def move_to(self, folder: str | os.PathLike[str], rank: int, size: int) -> Path:
        """Go on in the file ``folder/rank-R.flight``, with what has been recorded so far.

        Parameters
        ----------
        folder : path
            Made if missing.
        rank, size : int
            Of this process, in the world.

        Raises
        ------
        OSError
            If the folder or the file cannot be written; recording goes on where it was.
        """
        path = Path(folder).absolute() / f"rank-{rank}.flight"
        about = {"rank": rank, "size": size, "host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # another process may still have the old one
        with self._moving:
            memory = _create(path)
            memory[_HEADER_BYTES:] = bytes(self._memory[_HEADER_BYTES:])
            memory[:_HEADER_BYTES] = _header(about)
            self._memory, left, self.path = memory, self.path, path
        if left is not None and left != path:
            left.unlink(missing_ok=True)
        return path

    def discard(self) -> None:
        """Go on in memory, and remove the file."""
        path = self.path
        self.leave()
        if path is not None:
            path.unlink(missing_ok=True)

    def leave(self) -> None:
        """Go on in memory, and leave the file alone, as a process does that was forked."""
        self._memory, self.path, self.under_way = bytearray(_NUM_BYTES), None, {}


def _create(path: Path) -> mmap.mmap:
    with path.open("x+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, _NUM_BYTES)  # a full file system is an error here, not a signal later
            return mmap.mmap(file.fileno(), _NUM_BYTES)
        except OSError:
            path.unlink()
            raise


def _header(about: dict[str, Any]) -> bytes:
    head = _MAGIC.ljust(_LIFE_AT, b"\0") + _LIFE.pack(about["time"], 0.0)
    return (head.ljust(_ABOUT_AT, b"\0") + json.dumps(about).encode()).ljust(_HEADER_BYTES, b"\0")


class Ring(NamedTuple):
    """What a file says.

    Attributes
    ----------
    rank, size, host, pid : int, int, str, int
        Whose it is.
    time, beat, ended : float
        When the file was begun, the last sign of life, and when the process ended in good order, 0 if it did not;
        seconds since the epoch.
    entries : list of Entry
        Its calls, the oldest first.
    """

    rank: int
    size: int
    host: str
    pid: int
    time: float
    beat: float
    ended: float
    entries: list[Entry]


def read(path: str | os.PathLike[str], num_last: int = NUM_RECORDS) -> Ring:
    """Return what a ring file says.

    Parameters
    ----------
    num_last : int
        How many calls are wanted, up to the newest.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is no such file.
    """
    with Path(path).open("rb") as file:
        head = file.read(_HEADER_BYTES)
        if not head.startswith(_MAGIC) or os.fstat(file.fileno()).st_size < _NUM_BYTES:
            raise ValueError(f"{path}: not a flight recorder's file")
        about: dict[str, Any] = json.loads(head[_ABOUT_AT:].rstrip(b"\0"))
        beat, ended = _LIFE.unpack_from(head, _LIFE_AT)
        places = [place % NUM_RECORDS for place in range(1 - num_last, 1)]
        newest = _newest(file.fileno()) if num_last < NUM_RECORDS else 0
        records = [_record(file.fileno(), (newest + place) % NUM_RECORDS) for place in places]
    return Ring(**about, beat=beat, ended=ended, entries=sorted(_entries(records)))


def _newest(descriptor: int) -> int:
    """Return the place of the newest record: tickets rise from place 1 up to it, and are older behind it."""
    (first,) = _TICKET.unpack_from(_record(descriptor, 1))
    return (
        bisect.bisect_left(range(2, NUM_RECORDS + 1), True, key=lambda place: _is_older(descriptor, place, first)) + 1
    )


def _is_older(descriptor: int, place: int, first: int) -> bool:
    return bool(_TICKET.unpack_from(_record(descriptor, place % NUM_RECORDS))[0] < first + place - 1)


def _record(descriptor: int, place: int) -> bytes:
    return os.pread(descriptor, _RECORD_BYTES, _HEADER_BYTES + place * _RECORD_BYTES)


def _entries(records: list[bytes]) -> Iterator[Entry]:
    for data in records:
        ticket, start, end, number, length, text = _RECORD.unpack(data)
        words = text[:length].decode(errors="replace").split("\t")
        if ticket and len(words) == len(Entry._fields) - 4:  # a record may be torn by the death of its writer
            yield Entry(ticket, start, end, number, *words)


@functools.lru_cache(maxsize=4096)
def words(verb: str, group: str, members: str, shape: Any, dtype: Any, peers: str, site: str) -> bytes:
    """Return the words of a record; a long call site loses its front."""
    nbytes = 0 if shape is None or dtype is None else math.prod(shape) * dtype.itemsize
    words = [verb, group[:40], members[:50], "" if shape is None else str(shape)[:40]]
    words += ["" if dtype is None else str(dtype), str(nbytes), peers[:30]]
    text = "\t".join([*(word.replace("\t", " ") for word in words), ""]).encode()
    return text + site.encode()[-max(_TEXT_BYTES - len(text), 1) :]


@functools.cache
def process_recorder() -> Recorder:
    """Return the recorder of this process."""
    recorder = Recorder()
    os.register_at_fork(after_in_child=recorder.leave)
    return recorder
