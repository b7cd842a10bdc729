"""Where a call comes from: the line, the module whose forward is running, the module whose backward is."""

from __future__ import annotations

import bisect
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from hpcdist.autograd.replay import Replay
from hpcdist.autograd.tape import mark
from hpcdist.comm.label import label

__all__ = ["Paths", "Place", "Spans", "place"]

_OURS = (str(Path(__file__).parents[1]) + "/", contextlib.__file__)
"""Files whose lines are no call sites."""
_FORWARD = ("__call__", "forward")
_NODE, _REPLAY = Replay._replay.__code__, Replay.run.__code__


class Place(NamedTuple):
    """Where the caller is.

    Attributes
    ----------
    site : str
        Line of the innermost frame outside this package, ``file:line``, and what ``record_comm`` says.
    modules : tuple of module
        Whose forward is running, innermost first; in backward only those which it computes again.
    node : int or None
        In backward, the number of the tape's entry that is being replayed.
    """

    site: str
    modules: tuple[Any, ...]
    node: int | None


def place() -> Place:
    """Return where the caller is."""
    frame: FrameType | None = sys._getframe(1)
    modules: list[Any] = []
    site, node, in_forward = None, None, True
    while frame is not None:
        code = frame.f_code
        if site is None and (frame.f_back is None or not code.co_filename.startswith(_OURS)):
            site = f"{code.co_filename}:{frame.f_lineno}{label()}"
        if in_forward and code.co_name in _FORWARD:
            modules += [
                m for m in [frame.f_locals.get("self")] if hasattr(m, "named_modules") and m not in modules[-1:]
            ]
        elif in_forward and code in (_NODE, _REPLAY):
            in_forward, node = False, frame.f_locals["node"].seq if code is _NODE else None
        frame = frame.f_back
    assert site is not None
    return Place(site, tuple(modules), node)


class Paths:
    """Names of modules in the tree they belong to."""

    def __init__(self) -> None:
        self._trees: dict[int, tuple[Any, dict[int, str]]] = {}

    def find(self, module: Any, roots: tuple[Any, ...]) -> str:
        """Return the path of a module in the first of the trees that holds it; its type's name if none does."""
        for root in roots:
            for refresh in (False, True):
                name = self._names(root, refresh).get(id(module))
                if name is not None:
                    return name
        return type(module).__name__

    def _names(self, root: Any, refresh: bool) -> dict[int, str]:
        if refresh or id(root) not in self._trees:
            names: dict[int, str] = {}
            for name, module in root.named_modules():
                names.setdefault(id(module), name)
            self._trees[id(root)] = (root, names)
        return self._trees[id(root)][1]


@dataclass(slots=True)
class _Span:
    """What the tape recorded during one call of a module; ``last`` is None while it runs."""

    path: str
    parent: _Span | None
    last: int | None = None


class Spans:
    """Which entries of the tape were recorded in the forward of which module."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._spans: list[_Span] = []
        self._open: _Span | None = None

    @contextlib.contextmanager
    def within(self, path: str) -> Iterator[None]:
        """Remember that what is recorded in this block is recorded in the module at ``path``."""
        span = self._open = _Span(path, self._open)
        self._firsts.append(mark())
        self._spans.append(span)
        try:
            yield
        finally:
            span.last, self._open = mark(), span.parent

    def path_of(self, node: int) -> str | None:
        """Return the path of the innermost module in which the tape's entry ``node`` was recorded."""
        before = bisect.bisect(self._firsts, node)
        span = self._spans[before - 1] if before else None
        while span is not None and span.last is not None and span.last < node:
            span = span.parent
        return None if span is None else span.path
