"""Checkpoints that keep what is dear: results of chosen operations, which are then not computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from hpcdist.array import Array
from hpcdist.autograd import OPS, Op
from hpcdist.autograd.tape import compute_row, computing_by
from hpcdist.errors import explain

__all__ = ["Policy", "create_selective_checkpoint_contexts"]

Policy = Iterable[str] | Callable[[str], bool]


def create_selective_checkpoint_contexts(
    policy: Policy,
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of a call and of its repetition between which results of some operations are kept.

    For ``checkpoint``: ``context_fn=functools.partial(create_selective_checkpoint_contexts, ["attention"])``.

    Parameters
    ----------
    policy : names of operations, or function ``(name) -> bool``
        Which ones: a name of ``hpcdist.autograd.OPS``, as ``repr`` of a result shows it (``from=``). Their outputs are
        kept, and what else they save that is not an input.
    """
    results = _Results(_chooser(policy))
    return computing_by(results.note), _Again(results)


def _chooser(policy: Policy) -> Callable[[str], bool]:
    if callable(policy):
        return policy
    names = [policy] if isinstance(policy, str) else list(policy)
    unknown = [name for name in names if name not in OPS]
    if unknown:
        do = "take names of operations from hpcdist.autograd.OPS"
        raise ValueError(explain("create_selective_checkpoint_contexts: no such operation", got=unknown, do=do))
    return frozenset(names).__contains__


class _Result(NamedTuple):
    """What an operation returned; saved values that are inputs are given by their places."""

    op: Op
    outputs: Any
    saved: list[tuple[int | None, Any]]

    def saved_with(self, arrays: list[Array]) -> tuple[Any, ...]:
        return tuple(value if place is None else arrays[place] for place, value in self.saved)


class _Results:
    """Results of the chosen operations of a call, in their order."""

    def __init__(self, chosen: Callable[[str], bool]) -> None:
        self._chosen = chosen
        self._results: list[_Result] = []

    def note(self, op: Op, arrays: list[Array], recording: bool, attrs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """Compute an operation, and keep the results of a chosen one."""
        outputs, saved = compute_row(op, arrays, recording, attrs)
        if recording and self._chosen(op.name):
            place_of = {id(a): i for i, a in enumerate(arrays)}
            places = [place_of.get(id(value)) for value in saved]
            kept = [(place, value if place is None else None) for place, value in zip(places, saved, strict=True)]
            self._results.append(_Result(op, outputs, kept))
        return outputs, saved

    def read(self) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
        """Return a function that computes an operation, and takes the results of a chosen one from here."""
        results = iter(self._results)

        def compute(op: Op, arrays: list[Array], recording: bool, attrs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
            if not (recording and self._chosen(op.name)):
                return compute_row(op, arrays, recording, attrs)
            result = next(results, None)
            if result is None or result.op is not op:
                do = "let the function compute the same each time it is called"
                expected = "no more operations" if result is None else result.op.name
                what = "checkpoint: an operation whose results are kept"
                raise RuntimeError(explain(what, got=op.name, expected=expected, do=do))
            return result.outputs, result.saved_with(arrays)

        return compute


class _Again(AbstractContextManager[None]):
    """Read kept results in a block; each time from the first one."""

    def __init__(self, results: _Results) -> None:
        self._results = results
        self._open: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self._open.append(computing_by(self._results.read()))
        self._open[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self._open.pop().__exit__(*error)
