"""What a store holds, and the changes that lead there: a function of the changes alone, wherever they are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hpcdist.errors import explain

__all__ = ["Change", "Contents", "pack", "unpack"]

_LENGTH_BYTES = 8


class Change(NamedTuple):
    """One change of a store.

    Attributes
    ----------
    verb : str
        Name of the method of :class:`Contents` that makes it.
    key : str
    values : tuple of bytes
    """

    verb: str
    key: str
    values: tuple[bytes, ...] = ()


class Contents:
    """Values and queues by key.

    Attributes
    ----------
    values : dict of str to bytes
    queues : dict of str to deque of bytes
        Without empty ones.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {}

    def apply(self, change: Change) -> bytes | None:
        """Make a change and return what it yields, if anything.

        Raises
        ------
        ValueError
            If something is added to what is no integer; nothing has changed then.
        """
        result: bytes | None = getattr(self, change.verb)(change.key, *change.values)
        return result

    # ---- one method a verb
    def set(self, key: str, value: bytes) -> None:
        """Store a value under a key."""
        self.values[key] = value

    def add(self, key: str, amount: bytes) -> bytes:
        """Add to an integer that is kept as decimal digits; a missing one counts as 0."""
        text = self.values.get(key, b"0")
        try:
            total = str(int(text) + int(amount)).encode()
        except ValueError:
            raise ValueError(explain(f"add: value of key {key!r}", got=text, expected="an integer")) from None
        self.values[key] = total
        return total

    def append(self, key: str, value: bytes) -> None:
        """Put a value behind what is there."""
        self.values[key] = self.values.get(key, b"") + value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Store ``desired`` if ``expected`` is there, or if it is empty and nothing is; return what is there then.

        Where nothing is there, and something was expected, that is ``expected``, as in torch.
        """
        there = self.values.get(key)
        if (there or b"") == expected and (there is not None or not expected):
            self.values[key] = there = desired
        return expected if there is None else there

    def delete(self, key: str) -> bytes | None:
        """Remove a key, with its queue; return something if it was there."""
        found = self.values.pop(key, None) is not None
        found = self.queues.pop(key, None) is not None or found
        return b"" if found else None

    def push(self, key: str, value: bytes) -> None:
        """Put a value at the end of a queue."""
        self.queues.setdefault(key, deque()).append(value)

    def pop(self, key: str) -> bytes | None:
        """Take the first value of a queue; None if it is empty."""
        queue = self.queues.get(key)
        if not queue:
            return None
        value = queue.popleft()
        if not queue:
            del self.queues[key]
        return value

    # ---- questions
    def has(self, key: str) -> bool:
        """Say whether there is a value, or a queue that is not empty."""
        return key in self.values or key in self.queues

    def keys(self) -> list[str]:
        """Return the keys of values and of queues, sorted."""
        return sorted({*self.values, *self.queues})

    def changes(self) -> Iterator[Change]:
        """Yield changes that lead from nothing to these contents."""
        yield from (Change("set", key, (value,)) for key, value in self.values.items())
        yield from (Change("push", key, (value,)) for key, queue in self.queues.items() for value in queue)


def pack(fields: Iterable[bytes]) -> bytes:
    """Return ``fields`` as one, each after its length (8 bytes, little-endian)."""
    return b"".join(len(field).to_bytes(_LENGTH_BYTES, "little") + field for field in fields)


def unpack(data: bytes) -> list[bytes]:
    """Return what went into :func:`pack`."""
    fields, at = [], 0
    while at < len(data):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(data[at:begin], "little")
        fields.append(data[begin:at])
    return fields
