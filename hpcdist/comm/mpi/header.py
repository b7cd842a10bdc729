"""What check mode sends in front of a message, in the same message: what the array is that follows."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcdist.array import Array

__all__ = ["HEADER_BYTES", "Header"]

HEADER_BYTES = 64
_HEAD = struct.Struct("<8sI")
_MAGIC = b"hpcdist\x01"
_TEXT_BYTES = HEADER_BYTES - _HEAD.size


class Header:
    """The bytes in front of one message, and what they have to be.

    Parameters
    ----------
    x : array
        What is sent, or what a receive expects.
    receives : bool
        Whether they are to be received.
    """

    def __init__(self, x: Array, *, receives: bool) -> None:
        text = f"{x.dtype.newbyteorder('=')} {x.shape}".encode()
        self._wanted = _HEAD.pack(_MAGIC, zlib.crc32(text)) + text[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
        self._memory: Array = np.frombuffer(self._wanted, np.uint8)
        if receives:
            self._memory = np.zeros(HEADER_BYTES, np.uint8)

    def fits(self) -> bool:
        """Say whether what was received is what was expected."""
        return self._memory.tobytes() == self._wanted

    def told(self) -> str:
        """Return what the sender says of its array, as far as it has arrived."""
        told = self._memory.tobytes()
        return told[_HEAD.size :].rstrip(b"\0").decode(errors="replace") if told.startswith(_MAGIC) else ""

    def ahead(self, handle: MPI.Intracomm) -> Ahead:
        """Return what sends and receives messages, the first of them with this header in front."""
        return Ahead(handle, self._memory)


class Ahead:
    """Stands for a communicator: the first message has a header in front, in one message with it.

    Parameters
    ----------
    handle : MPI.Intracomm
    header : array, uint8
    """

    def __init__(self, handle: MPI.Intracomm, header: Array) -> None:
        self._handle, self._header = handle, header
        self._first = True

    def Isend(self, message: Sequence[Any], dest: int, tag: int) -> MPI.Request:  # noqa: N802 (mpi4py's name)
        """Post the sending of ``message``: memory, count, datatype. Point to point."""
        return self._post(self._handle.Isend, message, dest, tag)

    def Irecv(self, message: Sequence[Any], source: int, tag: int) -> MPI.Request:  # noqa: N802 (mpi4py's name)
        """Post the receiving of ``message``: memory, count, datatype. Point to point."""
        return self._post(self._handle.Irecv, message, source, tag)

    def _post(self, call: Callable[..., MPI.Request], message: Sequence[Any], peer: int, tag: int) -> MPI.Request:
        if not self._first:
            return call(message, peer, tag)
        self._first = False
        memory, count, datatype = message
        places = [MPI.Get_address(self._header), MPI.Get_address(memory)]
        both = MPI.Datatype.Create_struct([HEADER_BYTES, count], places, [MPI.BYTE, datatype]).Commit()
        try:
            return call([MPI.BOTTOM, 1, both], peer, tag)
        finally:
            both.Free()  # MPI keeps it until the message is through
