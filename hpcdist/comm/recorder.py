"""The flight recorder: the last calls of this rank, in a ring that may lie in a file and then survives the rank."""

from __future__ import annotations

import functools
import itertools
import json
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hpcdist.comm.operation import Operation

__all__ = ["NUM_RECORDS", "Entry", "Recorder", "process_recorder", "read"]

NUM_RECORDS = 1000
_MAGIC = b"hpcdist flight 1\n"
_HEADER_BYTES, _RECORD_BYTES = 512, 256
_HEAD = struct.Struct("<QddQH")  # ticket, start, end, number, length of the text that follows
_END = struct.Struct("<d")
_END_AT = 16
_TEXT_BYTES = _RECORD_BYTES - _HEAD.size
_FAILED = -1.0


class Entry(NamedTuple):
    """One call, as recorded.

    Attributes
    ----------
    ticket : int
        Position among all calls of the rank, from 1.
    start, end : float
        Seconds since the epoch; ``end`` is 0 while the call is under way, and -1 if it failed.
    number : int
        Position among the calls on its group.
    verb, group, rank, size, shape, dtype, nbytes, peers, site : str
        As of the operation.
    """

    ticket: int
    start: float
    end: float
    number: int
    verb: str
    group: str
    rank: str
    size: str
    shape: str
    dtype: str
    nbytes: str
    peers: str
    site: str


class Recorder:
    """The last thousand calls of one process; begins in memory, and moves to a file when there is a folder for it.

    Attributes
    ----------
    under_way : dict of int to (Operation, float)
        Calls that have not ended, by ticket, with the time they began (``time.monotonic``).
    path : Path or None
        The file, if there is one.
    """

    def __init__(self) -> None:
        self._memory: Any = bytearray(_HEADER_BYTES + NUM_RECORDS * _RECORD_BYTES)
        self._tickets = itertools.count(1)
        self.under_way: dict[int, tuple[Operation, float]] = {}
        self.path: Path | None = None

    def begin(self, operation: Operation) -> int:
        """Record that a call begins; return its ticket. Never blocks."""
        ticket = next(self._tickets)
        o = operation
        text = _text(o.verb, o.group, o.rank, o.size, o.shape, o.dtype, o.peers, o.site)
        at = _HEADER_BYTES + ticket % NUM_RECORDS * _RECORD_BYTES
        memory = self._memory
        memory[at + _HEAD.size : at + _HEAD.size + len(text)] = text
        _HEAD.pack_into(memory, at, ticket, time.time(), 0.0, o.number, len(text))
        self.under_way[ticket] = (operation, time.monotonic())
        return ticket

    def end(self, ticket: int, *, failed: bool = False) -> None:
        """Record that a call has ended. Never blocks."""
        if self.under_way.pop(ticket, None) is not None:
            at = _HEADER_BYTES + ticket % NUM_RECORDS * _RECORD_BYTES
            _END.pack_into(self._memory, at + _END_AT, _FAILED if failed else time.time())

    def move_to(self, folder: str | os.PathLike[str], rank: int, size: int) -> Path:
        """Go on in the file ``folder/rank-R.flight``, with what has been recorded so far.

        Raises
        ------
        OSError
            If the folder or the file cannot be written; recording goes on where it was.
        """
        path = Path(folder) / f"rank-{rank}.flight"
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"rank": rank, "size": size, "host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
        header = (_MAGIC + json.dumps(about).encode()).ljust(_HEADER_BYTES, b"\0")
        with path.open("w+b") as file:
            file.truncate(len(self._memory))
            memory = mmap.mmap(file.fileno(), len(self._memory))
        memory[:] = header + bytes(self._memory[_HEADER_BYTES:])
        self._memory, left, self.path = memory, self.path, path
        if left is not None and left != path:
            left.unlink(missing_ok=True)
        return path


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Entry]]:
    """Return what a ring file says: whose it is (rank, size, host, pid, time), and its calls, the oldest first.

    Raises
    ------
    ValueError
        If it is no such file.
    """
    data = Path(path).read_bytes()
    if not data.startswith(_MAGIC) or len(data) < _HEADER_BYTES + NUM_RECORDS * _RECORD_BYTES:
        raise ValueError(f"{path}: not a flight recorder's file")
    about: dict[str, Any] = json.loads(data[len(_MAGIC) : _HEADER_BYTES].rstrip(b"\0"))
    return about, sorted(_entries(data))


def _entries(data: bytes) -> Iterator[Entry]:
    for at in range(_HEADER_BYTES, _HEADER_BYTES + NUM_RECORDS * _RECORD_BYTES, _RECORD_BYTES):
        ticket, start, end, number, length = _HEAD.unpack_from(data, at)
        text = data[at + _HEAD.size : at + _HEAD.size + length].decode(errors="replace").split("\t")
        if ticket and len(text) == len(Entry._fields) - 4:  # a record may be torn by the death of its writer
            yield Entry(ticket, start, end, number, *text)


@functools.lru_cache(maxsize=4096)
def _text(verb: str, group: str, rank: int, size: int, shape: Any, dtype: Any, peers: str, site: str) -> bytes:
    """Return the words of a record; a long call site loses its front."""
    nbytes = Operation(verb, rank, size, group, 0, shape, dtype, (), peers, site).nbytes
    words = [verb, group[:40], str(rank), str(size), "" if shape is None else str(shape)[:60]]
    words += ["" if dtype is None else str(dtype), str(nbytes), peers[:40]]
    text = "\t".join([*(word.replace("\t", " ") for word in words), ""]).encode()
    return text + site.encode()[-max(_TEXT_BYTES - len(text), 1) :]


@functools.cache
def process_recorder() -> Recorder:
    """Return the recorder of this process."""
    return Recorder()
