"""More elements at the ends of dimensions."""

from __future__ import annotations

from typing import Any, TypeAlias

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS

__all__ = ["PAD", "Widths", "sources"]

Widths: TypeAlias = tuple[tuple[int, int], ...]
"""Elements to put before and after each dimension; negative: to cut off."""


def _signature(shapes: list[tuple[int, ...]], *, widths: Widths, **_: Any) -> str:
    """Dimensions that grow must be whole."""
    names = LETTERS[: len(shapes[0])]
    grows = [pair != (0, 0) for pair in widths]
    inside = "".join(f"[{n}]" if g else n for n, g in zip(names, grows, strict=True))
    others = LETTERS[len(names) :]
    outside = "".join(f"[{other}]" if g else n for n, other, g in zip(names, others, grows, strict=False))
    return f"{inside}->{outside}"


def _source(i: int, n: int, mode: str) -> int:
    """Return the element of ``0 .. n - 1`` that stands at ``i``, which lies outside."""
    if mode == "circular":
        return i % n
    if mode == "replicate":
        return 0 if i < 0 else n - 1
    return -i if i < 0 else 2 * (n - 1) - i


def sources(n: int, pair: tuple[int, int], mode: str) -> list[int]:
    """Return the element of ``0 .. n - 1`` that stands at each place of a padded dimension."""
    return [i if 0 <= i < n else _source(i, n, mode) for i in range(-pair[0], n + pair[1])]


def _check(n: int, before: int, after: int, mode: str) -> None:
    limits = {"reflect": max(n - 1, 0), "circular": n, "replicate": before + after if n else 0}
    if mode not in (*limits, "constant"):
        raise ValueError(f"mode is {mode!r}: expected 'constant', 'reflect', 'replicate' or 'circular'")
    if mode == "constant" and n + before + after < 0:
        raise ValueError(f"cannot cut {-before - after} elements off {n}")
    if mode != "constant" and not (0 <= before <= limits[mode] and 0 <= after <= limits[mode]):
        raise ValueError(f"{mode} can put 0 to {limits[mode]} elements at an end of {n}, not {before}, {after}")


def _inner(shape: tuple[int, ...], widths: Widths) -> tuple[Any, Any]:
    """Return where the elements that are kept lie in the padded array, and where in the other."""
    ends = [
        (max(before, 0), max(before, 0) + n + min(before, 0) + min(after, 0))
        for n, (before, after) in _each(shape, widths)
    ]
    inside = tuple(slice(start, stop) for start, stop in ends)
    kept = tuple(slice(max(-before, 0), n - max(-after, 0)) for n, (before, after) in _each(shape, widths))
    return inside, kept


def _each(shape: tuple[int, ...], widths: Widths) -> Any:
    return zip(shape, widths, strict=True)


def _borders(shape: tuple[int, ...], widths: Widths, mode: str) -> Any:
    """Yield places of the padded array outside, and their sources, a slice at a time, in the order of copying."""
    for d, (n, (before, after)) in enumerate(_each(shape, widths)):
        lead = (slice(None),) * d
        for i in (*range(-before, 0), *range(n, n + after)):
            yield (*lead, i + before), (*lead, _source(i, n, mode) + before)


@row(_signature)
def pad(a: Array, *, widths: Widths, mode: str, value: float) -> tuple[Array, tuple[()]]:
    """Put ``value``, or elements of ``a`` that ``mode`` names, around ``a``."""
    for n, (before, after) in _each(a.shape, widths):
        _check(n, before, after, mode)
    shape = tuple(n + before + after for n, (before, after) in _each(a.shape, widths))
    out: Array = namespace(a).full(shape, a.dtype.type(value), a.dtype)
    inside, kept = _inner(a.shape, widths)
    out[inside] = a[kept]
    if mode != "constant":
        for place, source in _borders(a.shape, widths, mode):
            out[place] = out[source]
    return out, ()


@pad
def PAD(into: Any, grads: Any, saved: Any, widths: Widths, mode: str, value: float) -> None:
    shape, g = into[0].shape, grads[0]
    inside, kept = _inner(shape, widths)
    if mode != "constant":
        g = g.copy()
        for place, source in reversed(list(_borders(shape, widths, mode))):
            g[source] += g[place]
    out = namespace(g).zeros(shape, g.dtype)
    out[kept] = g[inside]
    into[0].give(out)
