"""Plans: which style goes to which module, and how parameters are placed because of it."""

from __future__ import annotations

import difflib
import re
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Placement
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.parallel.style import ParallelStyle

__all__ = ["DEALT", "Assignment", "Placing", "Plan", "assignments", "layout_of", "placings", "unnumbered"]

Plan: TypeAlias = "ParallelStyle | Sequence[ParallelStyle] | Mapping[str, Plan]"
"""A style, several that are applied one after another, or plans by patterns of names."""


class Assignment(NamedTuple):
    """A style for a module."""

    name: str
    module: Module
    style: ParallelStyle


class Placing(NamedTuple):
    """A parameter, all its slots, and how it is placed on the one axis.

    Attributes
    ----------
    places : list of (str, Module, str)
        Full name, owner and key of every slot; a tied parameter has several.
    """

    tensor: Any
    places: list[tuple[str, Module, str]]
    placement: Placement

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.places[0][0]


# ---------------------------------------------------------------- matching
def assignments(root: Module, plan: Plan, *, strict: bool = True) -> list[Assignment]:
    """Return every module of the plan with its style, in the order of the plan.

    Raises
    ------
    ValueError
        If a pattern matches no module, and ``strict``; says which names are near.
    TypeError
        If something is no plan.
    """
    once: dict[tuple[int, int], Assignment] = {}  # a module may be found under several names, and by several patterns
    for found in _assigned("", root, plan, strict):
        once.setdefault((id(found.module), id(found.style)), found)
    return list(once.values())


def _assigned(name: str, module: Module, plan: Any, strict: bool) -> Iterator[Assignment]:
    if isinstance(plan, ParallelStyle):
        yield Assignment(name, module, plan)
    elif isinstance(plan, Mapping):
        for pattern, inner in plan.items():
            for child_name, child in _matches(module, pattern, name, strict):
                yield from _assigned(child_name, child, inner, strict)
    elif isinstance(plan, (list, tuple)) and all(isinstance(style, ParallelStyle) for style in plan):
        for style in plan:
            yield Assignment(name, module, style)
    else:
        what = f"parallelize_plan{f' of {name!r}' if name else ''}"
        expected = "a ParallelStyle, a sequence of them, or a dict of plans by module name"
        raise TypeError(explain(what, got=repr(None) if plan is None else type(plan).__name__, expected=expected))


def _matches(module: Module, pattern: object, prefix: str, strict: bool) -> list[tuple[str, Module]]:
    """Return modules whose name fits, part by part between dots; "" is the module itself."""
    if not isinstance(pattern, str):
        raise TypeError(explain("parallelize_plan: a key", got=repr(pattern), expected="a name or pattern"))
    inside = dict(module.named_modules())
    found = [name for name in inside if _fits(name, pattern)]
    if not found:
        message = _unmatched(pattern, prefix, [name for name in inside if name])
        if strict:
            raise ValueError(message)
        warnings.warn(message, stacklevel=5)
    return [(f"{prefix}.{name}" if prefix and name else prefix or name, inside[name]) for name in found]


def _fits(name: str, pattern: str) -> bool:
    if not name:
        return not pattern
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _unmatched(pattern: str, prefix: str, names: list[str]) -> str:
    patterns = set(map(unnumbered, names))
    near = difflib.get_close_matches(pattern, sorted({*names, *patterns}), n=4)
    where = f" in {prefix!r}" if prefix else ""
    expected = f"one such as {', '.join(near)}" if near else f"one of {', '.join(sorted(patterns)) or 'none'}"
    return explain(f"parallelize_plan: no module{where} fits", got=repr(pattern), expected=expected)


def unnumbered(name: str) -> str:
    """Return the pattern of a name and of those that differ in their numbers: blocks.*.attn for blocks.0.attn."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


# ---------------------------------------------------------------- placing
DEALT: weakref.WeakKeyDictionary[Any, DTensor] = weakref.WeakKeyDictionary()
"""What became of parameters: other modules, parallelized in calls of their own, may hold them, too (tied)."""


def placings(root: Module, assigned: Sequence[Assignment]) -> list[Placing]:
    """Return every parameter once with its placement; what no style places is Invariant, or as it is already.

    Raises
    ------
    ValueError
        If two styles place a parameter differently; names both places.
    """
    wanted = _wanted(assigned)
    found: dict[int, Placing] = {}
    sources: dict[int, str] = {}
    for name, owner, key in root.named_slots():
        held = owner.slots[key]
        tensor = DEALT.get(held, held)
        as_it_is = tensor.placements[0] if isinstance(tensor, DTensor) else Invariant()
        entry = found.setdefault(id(tensor), Placing(tensor, [], as_it_is))
        entry.places.append((name, owner, key))
        if (id(owner), key) not in wanted:
            continue
        placement = wanted[id(owner), key]
        if id(tensor) in sources and entry.placement != placement:
            got = f"{entry.placement} by {sources[id(tensor)]}, {placement} by {name}"
            do = "place a tied parameter in one way: leave one of its modules out of the plan"
            raise ValueError(explain(f"{sources[id(tensor)]} and {name} are one parameter", got=got, do=do))
        sources[id(tensor)] = name
        found[id(tensor)] = entry._replace(placement=placement)
    return list(found.values())


def _wanted(assigned: Sequence[Assignment]) -> dict[tuple[int, str], Placement]:
    """Return the placement of slots that styles place, by owner and key."""
    wanted: dict[tuple[int, str], Placement] = {}
    for name, module, style in assigned:
        for key, placement in style.placements(module).items():
            before = wanted.setdefault((id(module), key), placement)
            if before != placement:
                raise ValueError(explain(f"{name}.{key}: two styles place it", got=f"{before}, {placement}"))
    return wanted


def layout_of(placing: Placing, mesh: Any) -> Layout:
    """Return the layout of a parameter on a mesh of one axis."""
    return Layout.of(mesh, [placing.placement], placing.tensor.shape)
