"""The ranks of a group as a short text, the same on all of them, and back."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence

__all__ = ["members_of", "name_members"]

_LONGEST = 40


def name_members(ranks: Sequence[int]) -> str:
    """Return ``"0-3"``, ``"0,2,5"``, ``"3,2"`` ...; a checksum in place of a long list."""
    text = ",".join(_runs(ranks))
    return text if len(text) <= _LONGEST else f"{len(ranks)} ranks, {zlib.crc32(text.encode()):08x}"


def _runs(ranks: Sequence[int]) -> Iterator[str]:
    for _, run in itertools.groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        found = [rank for _, rank in run]
        yield str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"


def members_of(text: str) -> list[int]:
    """Return the ranks that ``text`` names, in the group's order; none if it does not name them."""
    if " " in text:
        return []
    ranks: list[int] = []
    for part in text.partition("#")[0].split(","):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks
