"""Parameters that got no gradient, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from hpcdist.parallel.bucket import Bucket

__all__ = ["Unused"]


class Unused(NamedTuple):
    """Names of parameters without a gradient.

    Attributes
    ----------
    anywhere : tuple of str
        Of no rank.
    here : tuple of str
        Of others, but not of this one.
    """

    anywhere: tuple[str, ...]
    here: tuple[str, ...]

    @classmethod
    def of(cls, buckets: Sequence[Bucket], names: Mapping[int, str]) -> Self:
        """Return what the last reduction of buckets has found; ``names`` are by the identity of parameters."""
        seen = [each for b in buckets for each in zip(b.parameters, b.had, b.found, strict=True)]
        return cls(
            tuple(names[id(p)] for p, _, found in seen if not found),
            tuple(names[id(p)] for p, had, found in seen if found and not had),
        )
