"""A call that backward makes again, for the values that it saves: what there is of it until then.

A region is a hook of saved values and nothing else: the call is recorded as ever, but of each value that backward will
want there is only a number. The first time that one is wanted the function is called once more, and the values that it
saves are handed out by their numbers. So the graph has the same edges, and gradients the same bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

from hpcdist.array import Array
from hpcdist.autograd import Tensor, queue_callback, saved_values
from hpcdist.autograd.kept import Kept
from hpcdist.autograd.tape import TAPE, computing_again
from hpcdist.dtensor import DTensor, Layout
from hpcdist.errors import explain
from hpcdist.parallel.standpoint import Standpoint

__all__ = ["Region", "each"]


def each(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Return tuples, lists and dicts with ``fn`` of what is in them."""
    if type(value) in (tuple, list):
        return type(value)(each(v, fn) for v in value)
    if type(value) is dict:
        return {key: each(v, fn) for key, v in value.items()}
    return fn(value)


class _Given(NamedTuple):
    """A tensor among the arguments."""

    kept: Kept
    layout: Layout | None

    def tensor(self) -> Any:
        local = self.kept.tensor()
        return local if self.layout is None else DTensor(local, self.layout)


class _Saved:
    """A value that backward will ask for; it is there from the recomputation until it has been used."""

    __slots__ = ("__weakref__", "_region", "value")

    def __init__(self, region: Region) -> None:
        self._region = region
        self.value: Array | None = None

    def array(self) -> Array:
        if self.value is None:
            self._region.compute_again()
        assert self.value is not None
        return self.value


class _Wanted(NamedTuple):
    """A saved value as the region remembers it: the graph alone decides how long there is one."""

    saved: weakref.ref[_Saved]
    shape: tuple[int, ...]
    dtype: Any


class Region:
    """One call: what it takes to make it again, and who waits for what it saves.

    Parameters
    ----------
    function : function of anything
    second : context
        In which it is called again.
    checks : bool
        Whether values must have the shapes and dtypes of the first time.
    preserves : bool
        Whether random numbers are those of the first time.
    """

    def __init__(
        self, function: Callable[..., Any], second: AbstractContextManager[Any], checks: bool, preserves: bool
    ) -> None:
        self._function, self._second, self._checks, self._preserves = function, second, checks, preserves
        self._standpoint = Standpoint()
        self._arguments: Any = None
        self._wanted: list[_Wanted] = []
        self._is_complete = False

    # ---- the first time
    @contextmanager
    def recording(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Note in a block, in which the function is called, what is saved; keep none of it but arguments."""
        kept: dict[int, Kept] = {}

        def give(x: Any) -> Any:
            if not isinstance(x, (Tensor, DTensor)):
                return x
            local, layout = (x.local, x.layout) if isinstance(x, DTensor) else (x, None)
            given = _Given(Kept(local), layout)
            kept.setdefault(id(local.data), given.kept)
            return given

        def pack(value: Array) -> Kept | _Saved:
            if id(value) in kept:
                return kept[id(value)]
            saved = _Saved(self)
            self._wanted.append(_Wanted(weakref.ref(saved), value.shape, value.dtype))
            return saved

        self._arguments = each((args, kwargs), give)
        with saved_values(pack, _array, is_region=True):
            yield
        self._standpoint.leave()
        self._is_complete = True

    # ---- again
    def compute_again(self) -> None:
        """Call the function again, and hand out what it saves. Collective over what the function is."""
        if TAPE.replays:
            queue_callback(self.forget)
        found: list[Array] = []
        try:
            self._call(found)
            self._check(found)
        except BaseException as error:
            error.add_note(f"while backward called {_name(self._function)} again, for what its checkpoint did not keep")
            raise
        for wanted, value in zip(self._wanted, found, strict=False):
            saved = wanted.saved()
            if saved is not None:
                saved.value = value

    def _call(self, found: list[Array]) -> None:
        tensors: list[Any] = []

        def restore(x: Any) -> Any:
            if isinstance(x, _Given):
                x = x.tensor()
                tensors.append(x)
            return x

        args, kwargs = each(self._arguments, restore)
        held = {id(x.local.data if isinstance(x, DTensor) else x.data) for x in tensors}

        def pack(value: Array) -> Array:
            if id(value) not in held:
                found.append(value)
            return value

        with (
            computing_again(),
            self._standpoint.again(random_state=self._preserves),
            self._second,
            saved_values(pack, _itself, is_region=True),
        ):
            self._function(*args, **kwargs)

    def _check(self, found: Sequence[Array]) -> None:
        """Compare what was saved with what was saved before."""
        do = "let it compute the same each time it is called: hpcdist's random numbers are, others may not be"
        what = f"checkpoint: {_name(self._function)} did not save the same a second time"
        if len(found) < len(self._wanted) or (len(found) > len(self._wanted) and self._is_complete):
            got, expected = (f"{n} values" for n in (len(found), len(self._wanted)))
            raise RuntimeError(explain(what, got=got, expected=expected, do=do))
        for i, (wanted, value) in enumerate(zip(self._wanted, found, strict=False)):
            if self._checks and (wanted.shape, wanted.dtype) != (value.shape, value.dtype):
                got, expected = (f"value {i}: {tuple(x.shape)} {x.dtype}" for x in (value, wanted))
                raise RuntimeError(explain(what, got=got, expected=expected, do=do))

    def forget(self) -> None:
        """Let go of values that nobody has used, or that may be used once more: they are computed again then."""
        for wanted in self._wanted:
            saved = wanted.saved()
            if saved is not None:
                saved.value = None


def _array(x: Kept | _Saved) -> Array:
    return x.array()


def _itself(value: Array) -> Array:
    return value


def _name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    return type(owner or function).__name__ if owner or not hasattr(function, "__name__") else function.__qualname__
