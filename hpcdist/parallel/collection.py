"""Gradients of whole parameters while backward adds them up, over all uses of a unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.array import Array
from hpcdist.autograd import empty
from hpcdist.parallel.bundle import Bundle

__all__ = ["Bundles", "Collection"]

Bundles = list[tuple[Bundle, list[int]]]
"""What travels together, and the places of its pieces among the unit's parameters."""


class Collection:
    """One array a parameter, into which uses of the unit write one after the other.

    Parameters
    ----------
    bundles : Bundles
    number : int
        Of parameters.
    """

    def __init__(self, bundles: Bundles, number: int) -> None:
        self._piece = {p: (bundle, bundle.pieces[i]) for bundle, places in bundles for i, p in enumerate(places)}
        self.arrays: list[Array | None] = [None] * number
        self._held: list[object] = [None] * number

    def home(self, place: int, use: object) -> tuple[Array, float]:
        """Return the memory for the gradient of one use, and how to write into it (as ``Into.place``).

        That of all uses, unless another use has it and is not complete: then memory of its own.
        """
        there = self.arrays[place]
        if self._held[place] is None:
            self._held[place] = use
            if there is not None:
                return there, 1.0
            there = self.arrays[place] = self._empty(place)
            return there, 0.0
        return self._empty(place), 0.0

    def _empty(self, place: int) -> Array:
        bundle, piece = self._piece[place]
        return empty(piece.shape, bundle.computes, bundle.like)

    def complete(self, use: object, gradients: Sequence[Array | None]) -> None:
        """Take the gradients of one use, which are complete."""
        for place, gradient in enumerate(gradients):
            there = self.arrays[place]
            if self._held[place] is use:
                self._held[place] = None
                self.arrays[place] = gradient
            elif gradient is not None and there is not None:
                there += gradient

    def take(self) -> list[Array | None]:
        """Return what has been collected, and start anew."""
        taken: list[Any] = self.arrays
        self.arrays, self._held = [None] * len(taken), [None] * len(taken)
        return taken
