"""What a rank tells the others of a call before it is carried out: the same number of bytes, whatever the call is."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hpcdist.comm.operation import Operation, describe, signature

if TYPE_CHECKING:
    from hpcdist.comm.mpi.plan import Sizes

__all__ = ["RECORD_BYTES", "balance", "differing", "fits", "record"]

RECORD_BYTES = 384
_HEAD = struct.Struct("<IQH")  # checksum of the call, balance of its sizes, length of the text that follows
_TEXT_BYTES = RECORD_BYTES - _HEAD.size
_SITE_LENGTH = 120
_WORD = 2**64


def record(operation: Operation, sizes: Sizes | None) -> bytes:
    """Return what a rank tells the others of its call.

    Parameters
    ----------
    operation : Operation
    sizes : tuple of two sequences, or None
        Bytes that it sends to each rank, and expects from each, where only the two know.
    """
    word = zlib.crc32(f"{operation.number} {signature(operation)}".encode())
    brought = f"{operation.dtype} {operation.shape}" if operation.shape is not None else ""
    sums = "" if sizes is None else f", brings {brought}, sends {list(sizes[0])}, expects {list(sizes[1])} bytes"
    text = _shortened(describe(operation), sums)
    return (_HEAD.pack(word, balance(operation.rank, sizes), len(text)) + text).ljust(RECORD_BYTES, b"\0")


def differing(records: bytes) -> list[str]:
    """Return a row of each rank for a table, if the records of all ranks do not fit together; else nothing."""
    each = [records[at : at + RECORD_BYTES] for at in range(0, len(records), RECORD_BYTES)]
    heads = [_HEAD.unpack_from(record) for record in each]
    if len({word for word, _, _ in heads}) == 1 and fits(balance for _, balance, _ in heads):
        return []
    return [r[_HEAD.size : _HEAD.size + length].decode() for r, (_, _, length) in zip(each, heads, strict=True)]


def _shortened(row: str, more: str) -> bytes:
    """Return a row of the table that has room in a record: the call site is at its end."""
    start, _, site = row.rpartition(", at ")
    end = f", at {site[-_SITE_LENGTH:]}"
    middle = start + more
    room = _TEXT_BYTES - len(end.encode())
    if len(middle.encode()) > room:
        middle = middle.encode()[: room - 3].decode(errors="ignore") + "..."
    return (middle + end).encode()


def balance(rank: int, sizes: Sizes | None) -> int:
    """Return a number for what a rank sends and expects: over all ranks these add up to zero only if all fits."""
    if sizes is None:
        return 0
    total = 0
    for other, (sends, expects) in enumerate(zip(*sizes, strict=True)):
        total += _mixed(rank, other, sends) - _mixed(other, rank, expects)
    return total % _WORD


def fits(balances: Iterable[int]) -> bool:
    """Say whether what ranks send is what others expect, from the balances of all of them."""
    return sum(balances) % _WORD == 0


def _mixed(source: int, dest: int, num_bytes: int) -> int:
    """Return a number that other triples hardly have."""
    x = (source * 0x9E3779B97F4A7C15 + dest * 0xC2B2AE3D27D4EB4F + num_bytes * 0xD6E8FEB86659FD93 + 1) % _WORD
    x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9 % _WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % _WORD
    return x ^ x >> 31
