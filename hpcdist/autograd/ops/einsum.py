"""Sums of products by equation."""

from __future__ import annotations

import string
from typing import Any, TypeAlias

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import real_if, sum_to
from hpcdist.kernels.precision import wide

__all__ = ["EINSUM"]

Labels: TypeAlias = tuple[list[str], str]
"""The letters of each operand and of the result, one a dimension."""


def read(equation: str, shapes: list[tuple[int, ...]]) -> Labels:
    """Split an equation; ``...`` is written in letters of its own, aligned at the right."""
    inside, arrow, result = equation.replace(" ", "").partition("->")
    terms = inside.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"{equation!r} is for {len(terms)} operands, not {len(shapes)}")
    depths = [len(s) - len(t) + 3 if "..." in t else 0 for t, s in zip(terms, shapes, strict=True)]
    rest = "".join(c for c in reversed(string.ascii_letters) if c not in equation)[: max(0, *depths)]
    terms = [t.replace("...", rest[len(rest) - depth :]) for t, depth in zip(terms, depths, strict=True)]
    if not arrow:
        result = "..." + "".join(sorted(c for c in set(inside) if c.isalpha() and inside.count(c) == 1))
    result = result.replace("...", rest)
    _check(equation, terms, result, shapes)
    return terms, result


def _check(equation: str, terms: list[str], result: str, shapes: list[tuple[int, ...]]) -> None:
    if not all(c in string.ascii_letters for c in "".join(terms) + result):
        raise ValueError(f"{equation!r} has signs other than letters, commas, '...' and '->'")
    if len(set(result)) < len(result) or not set(result) <= set("".join(terms)):
        raise ValueError(f"{equation!r}: each letter of the result is there once, and in an operand")
    for term, shape in zip(terms, shapes, strict=True):
        if len(term) != len(shape):
            raise ValueError(f"{equation!r} names {len(term)} dimensions of an operand that has {len(shape)}")
    extents(terms, shapes)


def extents(terms: list[str], shapes: list[tuple[int, ...]]) -> dict[str, int]:
    """Return the extent of each letter; extents of one are stretched."""
    found: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, n in zip(term, shape, strict=True):
            if found.setdefault(letter, n) == 1:
                found[letter] = n
            elif n not in (1, found[letter]):
                raise ValueError(f"letter {letter!r} has extents {found[letter]} and {n}")
    return found


def _signature(shapes: list[tuple[int, ...]], *, equation: str) -> str:
    """Write the equation as a signature; a letter that one operand has twice (a diagonal) must be whole."""
    terms, result = read(equation, shapes)
    full = extents(terms, shapes)
    twice = {c for t in terms for c in t if t.count(c) > 1}

    def name(letter: str, n: int) -> str:
        return "1" if n == 1 != full[letter] else f"[{letter}]" if letter in twice else letter

    groups = ["".join(map(name, t, s)) for t, s in zip(terms, shapes, strict=True)]
    return f"{','.join(groups)}->{''.join(name(c, full[c]) for c in result)}"


def _product(terms: list[str], result: str, operands: list[Array]) -> Array:
    return namespace(*operands).einsum(f"{','.join(terms)}->{result}", *operands, optimize=len(operands) > 1)


@row(_signature, linear="each")
def einsum(*operands: Array, equation: str) -> tuple[Array, tuple[Array, ...]]:
    """Return the product of the operands, added up over the letters that the result lacks."""
    terms, result = read(equation, [a.shape for a in operands])
    xp = namespace(*operands)
    value = _product(terms, result, [wide(a) for a in operands])
    return xp.asarray(value, xp.result_type(*operands)), operands


@einsum
def EINSUM(into: Any, grads: Any, saved: Any, equation: str) -> None:
    terms, result = read(equation, [a.shape for a in saved])
    full = extents(terms, [a.shape for a in saved])
    for i, target in enumerate(into):
        if target is not None:
            others = [(t, a) for j, (t, a) in enumerate(zip(terms, saved, strict=True)) if j != i]
            g = _gradient(grads[0], terms[i], result, others, full)
            target.give(real_if(sum_to(g, target.shape), target.dtype))


def _gradient(g: Array, term: str, result: str, others: list[tuple[str, Array]], full: dict[str, int]) -> Array:
    """Return the gradient of one operand, whose letters all have their full extent."""
    labels = [result, *(t for t, _ in others)]
    unique = "".join(dict.fromkeys(term))
    known = "".join(c for c in unique if any(c in t for t in labels))
    value = _product(labels, known, [wide(g), *(wide(a).conj() for _, a in others)])
    xp = namespace(value)
    # a letter that nobody else has, or only with an extent of one: each of its elements gets the same
    have = dict(zip(known, value.shape, strict=True))
    value = xp.broadcast_to(value.reshape([have.get(c, 1) for c in unique]), [full[c] for c in unique])
    if unique == term:
        return value
    out = xp.zeros([full[c] for c in term], value.dtype)
    xp.einsum(f"{term}->{unique}", out)[...] = value  # a view of the diagonal
    return out
