"""Python objects as messages: pickled by the communicator's own verbs, with large arrays beside the pickle.

An object becomes a frame (the number and sizes of its buffers, then the pickle) and buffers, which are the memory of
its large arrays: protocol 5 does not copy them into the pickle. Messages longer than MPI can count are the verbs' job.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from hpcdist.array import Array
from hpcdist.comm.agreement import portable
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.observing import OBJECT, observable
from hpcdist.errors import explain

__all__ = ["all_gather", "broadcast", "gather", "recv", "refusal", "scatter", "send"]

_INT = np.dtype(np.int64)
_LEAST_BYTES = 4096
"""Smaller buffers stay in the pickle: a message of their own would cost more than the copy."""
_ALIGNMENT = 64


# ---- collectives
def all_gather(comm: Communicator, value: Any) -> list[Any]:
    """Return the picklable ``value`` of every rank, in rank order. Collective over ``comm``.

    Raises
    ------
    TypeError
        On every rank, if the value of one cannot be pickled.
    """
    packed = _Packed.of(value)
    flat = packed.flat()
    sizes = _lengths(comm, "all_gather_object", packed, flat)
    joined = comm.all_gather(flat, sizes=sizes)
    return [_unflatten(part) for part in _cut(joined, sizes)]


@observable(OBJECT)
def gather(comm: Communicator, value: Any, root: int) -> list[Any] | None:
    """Return the picklable ``value`` of every rank on the root, None elsewhere. Collective over ``comm``.

    Raises
    ------
    TypeError
        On every rank, if the value of one cannot be pickled.
    """
    packed = _Packed.of(value)
    flat = packed.flat()
    sizes = _lengths(comm, "gather_object", packed, flat)
    if comm.rank != root:
        comm.gather(flat, root)
        return None
    parts = comm.gather(flat, root, out=[np.empty(n, np.uint8) for n in sizes])
    assert parts is not None
    return [_unflatten(part) for part in parts]


def broadcast(comm: Communicator, value: Any, root: int) -> Any:
    """Return a copy of the root's picklable ``value``. Collective over ``comm``.

    Raises
    ------
    TypeError
        On every rank, if it cannot be pickled.
    """
    packed = _Packed.of(value) if comm.rank == root else _Packed(np.empty(0, np.uint8))
    frame_bytes, refused = map(int, comm.broadcast(np.array([packed.frame.size, packed.refused]), root))
    frame = comm.broadcast(packed.frame if comm.rank == root else np.empty(frame_bytes, np.uint8), root)
    if refused:
        raise _refusal("broadcast_object", root, frame)
    mine = packed.buffers if comm.rank == root else [np.empty(n, np.uint8) for n in _sizes(frame)]
    return _unpack(frame, [comm.broadcast(x, root, out=None if comm.rank == root else x) for x in mine])


@observable(OBJECT)
def scatter(comm: Communicator, values: Sequence[Any] | None, root: int) -> Any:
    """Return this rank's one of the root's picklable ``values``. Collective over ``comm``.

    Raises
    ------
    TypeError, ValueError
        On every rank, if a value cannot be pickled, or if there is not one a rank.
    """
    flats, error = _flats(comm, values, root) if comm.rank == root else (None, None)
    told = comm.broadcast_object(portable(error) if flats is None else [x.size for x in flats], root)
    if isinstance(told, Exception):
        raise told from error
    return _unflatten(comm.scatter(flats, np.empty(told[comm.rank], np.uint8), root))


def _flats(comm: Communicator, values: Sequence[Any] | None, root: int) -> tuple[list[Array] | None, Exception | None]:
    """Return what the root sends to each rank, or why it cannot."""
    if values is None or len(values) != comm.size:
        got, expected = "None" if values is None else f"{len(values)} objects", f"{comm.size} on the root, one a rank"
        return None, ValueError(explain("scatter_object: objects", got=got, expected=expected))
    packed = list(map(_Packed.of, values))
    refused = next((p for p in packed if p.refused), None)
    if refused is not None:
        return None, _refusal("scatter_object", root, refused.frame)
    return [p.flat() for p in packed], None


# ---- messages
@observable(OBJECT)
def send(comm: Communicator, value: Any, dest: int, tag: int) -> None:
    """Send the picklable ``value`` to rank ``dest`` of ``comm``. Point to point.

    Raises
    ------
    TypeError
        If it cannot be pickled; nothing is sent then.
    """
    packed = _Packed.of(value)
    if packed.refused:
        raise _refusal("send_object", comm.rank, packed.frame)
    messages = [np.array([packed.frame.size]), packed.frame, *packed.buffers]
    for work in [comm.isend(message, dest, tag) for message in messages]:
        work.wait()


@observable(OBJECT)
def recv(comm: Communicator, source: int | None, tag: int) -> tuple[Any, int]:
    """Return an object that rank ``source`` of ``comm`` (None: any) sends, and who sent it. Point to point."""
    length = np.empty(1, np.int64)
    first = comm.irecv(length, source, tag)
    first.wait()
    who = first.source
    assert who is not None
    frame = comm.recv(np.empty(int(length[0]), np.uint8), who, tag)
    return _unpack(frame, [comm.recv(np.empty(n, np.uint8), who, tag) for n in _sizes(frame)]), who


# ---- objects as bytes
class _Packed(NamedTuple):
    """An object as bytes; if it was refused, ``frame`` is the reason."""

    frame: Array
    buffers: Sequence[Array] = ()
    refused: bool = False

    @classmethod
    def of(cls, value: Any) -> _Packed:
        buffers: list[Array] = []

        def stays(buffer: pickle.PickleBuffer) -> bool:
            memory = buffer.raw()
            if memory.nbytes < _LEAST_BYTES:
                return True
            buffers.append(np.frombuffer(memory, np.uint8))
            return False

        try:
            data = pickle.dumps(value, protocol=5, buffer_callback=stays)
        except Exception as e:
            return cls(np.frombuffer(f"{type(value).__name__}: {e}".encode(), np.uint8), (), True)
        head = np.array([len(buffers), *(x.size for x in buffers)], np.int64)
        return cls(np.frombuffer(head.tobytes() + data, np.uint8), buffers)

    def flat(self) -> Array:
        """Return frame and buffers as one array, each where an array may begin."""
        parts = [self.frame, *self.buffers]
        starts = _starts([_INT.itemsize + self.frame.size, *(x.size for x in self.buffers)])
        whole = np.empty(starts[-1], np.uint8)
        whole[: _INT.itemsize] = np.array([self.frame.size], _INT).view(np.uint8)
        for start, part in zip([_INT.itemsize, *starts[1:]], parts, strict=False):
            whole[start : start + part.size] = part
        return whole


def _unflatten(whole: Array) -> Any:
    """Return the object; its large arrays are views of ``whole``."""
    length = int(whole[: _INT.itemsize].view(_INT)[0])
    frame = whole[_INT.itemsize : _INT.itemsize + length]
    sizes = _sizes(frame)
    starts = _starts([_INT.itemsize + length, *sizes])[1:]
    return _unpack(frame, [whole[start : start + n] for start, n in zip(starts, sizes, strict=False)])


def _sizes(frame: Array) -> list[int]:
    """Return the bytes of each buffer that belongs to a frame."""
    count = int(np.frombuffer(frame[: _INT.itemsize], _INT)[0])
    return [int(n) for n in np.frombuffer(frame[_INT.itemsize : (count + 1) * _INT.itemsize], _INT)]


def _unpack(frame: Array, buffers: Sequence[Array]) -> Any:
    data: Any = frame[(len(buffers) + 1) * _INT.itemsize :]
    return pickle.loads(data, buffers=buffers)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return where each of the parts begins, and where the last ends, rounded up."""
    return [0, *accumulate(-(-n // _ALIGNMENT) * _ALIGNMENT for n in sizes)]


def _cut(x: Array, sizes: Sequence[int]) -> Iterator[Array]:
    return (x[end - n : end] for n, end in zip(sizes, accumulate(sizes), strict=True))


def _lengths(comm: Communicator, verb: str, packed: _Packed, flat: Array) -> list[int]:
    """Return the bytes that every rank brings; raise on all if one has none. Collective over ``comm``."""
    size = packed.frame.size if packed.refused else flat.size
    heads = comm.all_gather(np.array([[size, packed.refused]]))
    sizes = [int(n) for n in heads[:, 0]]
    if heads[:, 1].any():
        rank = int(heads[:, 1].argmax())
        reason = packed.frame if comm.rank == rank else np.empty(sizes[rank], np.uint8)
        raise _refusal(verb, rank, comm.broadcast(reason, rank))
    return sizes


def _refusal(verb: str, rank: int, reason: Array) -> TypeError:
    return refusal(verb, rank, reason.tobytes().decode())


def refusal(verb: str, rank: int, reason: str) -> TypeError:
    """Return the error for a value of ``rank`` that cannot be pickled."""
    return TypeError(
        explain(f"{verb}: the value of rank {rank} cannot be pickled", got=reason, expected="a picklable object")
    )
