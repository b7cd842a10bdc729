"""Observers: what is told of every verb that a thread calls, on any group.

While there is an observer anywhere, the verbs of all classes of groups are wrapped; else nothing is, and a verb costs
what it costs. The wrappers are in this package, so that call sites in records stay what they are.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from hpcdist.array import Array
from hpcdist.comm.work import Done, Work

if TYPE_CHECKING:
    from hpcdist.comm.communicator import Communicator

__all__ = ["Observation", "include", "observable", "observing", "unobserved"]

P = ParamSpec("P")
T = TypeVar("T")

OBJECT = "object"
_ARRAYS = (
    "all_reduce", "reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "gather", "scatter", "send",
    "recv", "barrier",
)  # fmt: skip
_VERBS = {
    **{form: verb for verb in _ARRAYS for form in (verb, f"i{verb}")},
    **dict.fromkeys(("all_gather_object", "broadcast_object"), OBJECT),
}


@dataclass(slots=True)
class Observation:
    """A verb as it was called; one that is made of others counts once, and those do not.

    Attributes
    ----------
    verb : str
        Its blocking name, or "object" for what exchanges Python objects.
    group, size : str, int
        The group it was called on, and the number of its ranks.
    shape, dtype : tuple of int and str, or None
        Of the array that was brought, or for recv of the one that receives; the first one of several.
    payload_bytes : int
        Of all these arrays, or of the pickled object.
    seconds : float or None
        From the call until it was found to be done; None while it is under way, or if it failed after it was posted.
    """

    verb: str
    group: str
    size: int
    shape: tuple[int, ...] | None
    dtype: str | None
    payload_bytes: int
    seconds: float | None = None


Observer: TypeAlias = Callable[[Observation], None]


class _Thread(threading.local):
    """Who observes this thread, and whether it is inside a verb."""

    observers: tuple[Observer, ...] = ()
    busy = False


_here = _Thread()
_lock = threading.Lock()
_classes: list[type[Communicator]] = []
_wrapped: list[tuple[type[Communicator], str, Any]] = []
_num_observers = 0


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call ``observer`` with all that this thread calls in a block, when it has been posted; nested blocks add up."""
    _count(1)
    _here.observers = (*_here.observers, observer)
    try:
        yield
    finally:
        _here.observers = tuple(other for other in _here.observers if other is not observer)
        _count(-1)


@contextmanager
def unobserved() -> Iterator[None]:
    """Let observers see nothing of a block: what check mode asks ranks is none of the program's calls."""
    before, _here.busy = _here.busy, True
    try:
        yield
    finally:
        _here.busy = before


def include(kind: type[Communicator]) -> None:
    """Let the verbs of a class of groups be observed."""
    with _lock:
        _classes.append(kind)
        if _num_observers:
            _wrap(kind)


def _count(step: int) -> None:
    """Wrap the verbs for the first observer, and put the originals back after the last."""
    global _num_observers
    with _lock:
        _num_observers += step
        if step == 1 == _num_observers:
            for kind in _classes:
                _wrap(kind)
        elif not _num_observers:
            while _wrapped:
                _unwrap(*_wrapped.pop())


def _wrap(kind: type[Communicator]) -> None:
    if inspect.isabstract(kind):
        return
    for name, verb in _VERBS.items():
        _wrapped.append((kind, name, vars(kind).get(name)))
        setattr(kind, name, observable(verb)(getattr(kind, name)))


def _unwrap(kind: type[Communicator], name: str, own: Any) -> None:
    if own is None:
        delattr(kind, name)
    else:
        setattr(kind, name, own)


def observable(verb: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return what makes observers see the calls of a function, whose first argument is a group, as ``verb``."""

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            if _here.busy or not _here.observers:
                return function(*args, **kwargs)
            start, _here.busy = time.perf_counter(), True
            try:
                result = function(*args, **kwargs)
                seconds = time.perf_counter() - start
                seen = _observation(verb, function, args, kwargs)
            finally:
                _here.busy = False
            if isinstance(result, Work) and not isinstance(result, Done):
                _time(result, seen, start)
            else:
                seen.seconds = seconds
            for observer in _here.observers:
                observer(seen)
            return result

        return called

    return wrap


def _time(work: Work[Any], seen: Observation, start: float) -> None:
    """Take the time when ``work`` is found to be done: it stays what it is, with another wait and test till then."""
    wait, test = work.wait, work.test

    def end() -> None:
        if seen.seconds is None:
            seen.seconds = time.perf_counter() - start
            del work.__dict__["wait"], work.__dict__["test"]

    def timed_wait(timeout_s: float | None = None) -> Any:
        value = wait(timeout_s)
        end()
        return value

    def timed_test() -> bool:
        done = test()
        if done:
            end()
        return done

    work.__dict__.update(wait=timed_wait, test=timed_test)


# ---- what a rank brings
def _observation(verb: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Observation:
    bound = _signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    given, comm = bound.arguments, bound.args[0]
    if verb == OBJECT:
        return Observation(verb, comm.name, comm.size, None, None, _object_bytes(given, comm.rank, function.__name__))
    arrays = _arrays(given)
    shape, dtype = (tuple(arrays[0].shape), str(arrays[0].dtype)) if arrays else (None, None)
    return Observation(verb, comm.name, comm.size, shape, dtype, sum(x.nbytes for x in arrays))


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _arrays(given: Mapping[str, Any]) -> list[Array]:
    """Return the arrays a rank brings to a verb; to recv, the one that receives."""
    if "parts" in given:
        return list(() if given["parts"] is None else given["parts"])
    array = given.get("x", given.get("out"))
    return [] if array is None else [array]


def _object_bytes(given: Mapping[str, Any], rank: int, name: str) -> int:
    """Return the size of the pickled object that this rank brings; 0 where it brings none."""
    listens = name in ("broadcast_object", "scatter") and given["root"] != rank
    key = next((key for key in ("value", "values") if key in given), None)
    return 0 if listens or key is None else len(pickle.dumps(given[key], protocol=5))
