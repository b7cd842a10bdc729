"""Ways to run an operation on one mesh axis, read off its sharding signature."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard

__all__ = ["Group", "Row", "Terms", "parse", "rows", "unnamed"]

Group = tuple[str, ...]
"""One letter a dimension; "" where it must be whole."""


class Terms(NamedTuple):
    """A signature, read: a group of letters an input and an output.

    Attributes
    ----------
    added, indices : tuple of int
        Inputs that are added to the result once, and those that name places: ``+`` and ``#`` of the signature.
    """

    inputs: tuple[Group, ...]
    outputs: tuple[Group, ...]
    added: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()


class Row(NamedTuple):
    """How the inputs of an operation must be placed on an axis, and how its outputs then are.

    Attributes
    ----------
    outputs : tuple of Placement
        One an output; the last one is for all further ones.
    letter : str
        The dimensions that are cut; "" if none is.
    """

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    letter: str = ""


def parse(signature: str) -> Terms:
    """Read a signature such as ``"m[k],n->mn"``; see ``hpcdist.autograd.op``."""
    inside, outside = signature.split("->")
    marked = inside.split(",")
    added, indices = (tuple(i for i, text in enumerate(marked) if text.startswith(mark)) for mark in "+#")
    return Terms(_groups(inside), _groups(outside), added, indices)


def unnamed(ranks: Sequence[int]) -> Terms:
    """Return terms for an operation without a signature: every dimension of its inputs must be whole."""
    return Terms(tuple(("",) * ndim for ndim in ranks), ())


def _groups(text: str) -> tuple[Group, ...]:
    tokens = [re.findall(r"\[\w+\]|\w", part) for part in text.split(",")]
    return tuple(tuple(t if t.isalpha() else "" for t in group) for group in tokens)


def rows(terms: Terms, linear: str, have: Sequence[Placement]) -> Iterator[Row]:
    """Yield the ways to run an operation whose inputs are placed as ``have`` on an axis.

    All whole; a letter cut where an input is cut already; sums where one is a sum already and the operation is linear.
    """
    ins, outs = len(terms.inputs), max(len(terms.outputs), 1)
    for whole in (Invariant(), Replicate()):
        yield Row((whole,) * ins, (whole,) * outs)
    yield from _cut(terms, have)
    for pending in dict.fromkeys(p for p in have if isinstance(p, Partial) and p.op in ("sum", "avg")):
        if linear == "joint":
            yield Row(tuple(Replicate() if i in terms.indices else pending for i in range(ins)), (pending,) * outs)
        if linear == "each":
            for i in range(ins):
                yield Row(tuple(pending if j == i else Replicate() for j in range(ins)), (pending,) * outs)


def _cut(terms: Terms, have: Sequence[Placement]) -> Iterator[Row]:
    seen = set()
    for group, p in zip(terms.inputs, have, strict=True):
        if not isinstance(p, Shard) or not group[p.dim] or (group[p.dim], p.unit, p.sections) in seen:
            continue
        letter = group[p.dim]
        seen.add((letter, p.unit, p.sections))

        def cut(g: Group, missing: Placement, letter: str = letter, p: Shard = p) -> Placement:
            return Shard(g.index(letter), p.unit, p.sections) if letter in g else missing

        summed = not any(letter in g for g in terms.outputs)
        missing = [Partial() if summed and i in terms.added else Replicate() for i in range(len(terms.inputs))]
        inputs = tuple(map(cut, terms.inputs, missing))
        yield Row(inputs, tuple(cut(g, Partial()) for g in terms.outputs), letter)
