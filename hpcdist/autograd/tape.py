"""The tape: what was computed, in recorded order, and its replay backwards.

Knows arrays and rows; nothing of modules or ranks. Edges point to nodes and leaves, never to tensors between them, so
the tape owns no array but what rows saved. Backward replays in reverse recorded order, never in the order of a set:
ranks that record the same program agree on the order of everything in it, collectives included.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from hpcdist.array import Array, is_array
from hpcdist.autograd.op import Op
from hpcdist.autograd.pool import allocator
from hpcdist.autograd.replay import Replay
from hpcdist.autograd.tensor import Tensor
from hpcdist.errors import explain

__all__ = [
    "Node",
    "apply",
    "backward",
    "computing_again",
    "computing_by",
    "enable_grad",
    "is_collecting",
    "is_grad_enabled",
    "is_replaying",
    "keep",
    "mark",
    "no_grad",
    "queue_callback",
    "saved_values",
]

Edge: TypeAlias = "tuple[Node, int] | tuple[Tensor, None] | None"
Pack: TypeAlias = Callable[[Array], Any]
Unpack: TypeAlias = Callable[[Any], Array]
Compute: TypeAlias = "Callable[[Op, list[Array], bool, dict[str, Any]], tuple[Any, tuple[Any, ...]]]"

_sequence = itertools.count(1)


class Node:
    """One entry: an operation that ran, where its inputs came from, and what it saved."""

    __slots__ = ("attrs", "edges", "hooks", "op", "outputs", "region", "saved", "seq")

    def __init__(self, op: Op, edges: list[Edge], saved: list[Any], attrs: dict[str, Any], outputs: list[Any]) -> None:
        self.op, self.edges, self.attrs, self.outputs = op, edges, attrs, outputs
        self.saved: list[Any] | None = saved
        self.seq, self.region = next(_sequence), TAPE.region
        self.hooks: list[tuple[int, Callable[[Array], Array | None]]] = []

    def values(self) -> list[Any]:
        """Return what was saved, unpacked."""
        if self.saved is None:
            raise RuntimeError(
                explain(
                    f"backward: ran through {self.op.name!r} a second time, and what it saved is gone",
                    do="say retain_graph=True the first time",
                )
            )
        return [unpack(value) if unpack else value for value, unpack in self.saved]


def compute_row(op: Op, arrays: list[Array], recording: bool, attrs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return outputs and saved values of an operation."""
    return op.forward(*arrays, recording=recording, **attrs) if op.plans else op.forward(*arrays, **attrs)


class _Tape(threading.local):
    """What is being recorded and replayed on this thread."""

    def __init__(self) -> None:
        self.recording = True
        self.hooks: list[tuple[Pack, Unpack]] = []
        self.region = 0
        self.compute: Compute = compute_row
        self.replays: list[Replay] = []
        self.again = 0


TAPE = _Tape()


def apply(op: Op, *inputs: Any, **attrs: Any) -> Any:
    """Run one operation on tensors, and record what backward needs. The one door.

    An input whose type has ``__apply__(op, inputs, attrs)`` takes over, as with NumPy's ``__array_function__``.

    Returns
    -------
    Tensor or tuple of Tensor

    Raises
    ------
    ValueError, TypeError
        If the inputs do not fit; the message names the operation, shapes and dtypes.
    """
    for x in inputs:
        if type(x) is not Tensor:
            handler = getattr(type(x), "__apply__", None)
            if handler is not None:
                return handler(op, inputs, attrs)
            if not isinstance(x, Tensor):
                raise TypeError(
                    explain(
                        f"{op.name}: an input is not a tensor",
                        got=type(x).__name__,
                        do="wrap it: hd.tensor(x)",
                    )
                )
    recording = TAPE.recording and any([x.requires_grad for x in inputs])
    arrays = [x.data for x in inputs]
    try:
        outputs, saved = TAPE.compute(op, arrays, recording, attrs)
    except (ValueError, TypeError, IndexError) as error:
        # not its own type: some of NumPy's take other arguments
        kind = next(k for k in (IndexError, TypeError, ValueError) if isinstance(error, k))
        raise kind(_describe(op, arrays, attrs, error)) from error
    many = isinstance(outputs, tuple)
    results = outputs if many else (outputs,)
    if not recording:
        plain = tuple([Tensor(a) for a in results])
        return plain if many else plain[0]
    edges = [None if not x.requires_grad else (x, None) if x.node is None else (x.node, x.slot) for x in inputs]
    node = Node(op, edges, keep(saved, inputs), attrs, [(a.shape, a.dtype, allocator(a)) for a in results])
    tensors = tuple([_result(a, node, slot) for slot, a in enumerate(results)])
    return tensors if many else tensors[0]


def _result(array: Array, node: Node, slot: int) -> Tensor:
    return Tensor._of_node(array, node, slot) if array.dtype.kind in "fcV" else Tensor(array)


def keep(saved: Sequence[Any], inputs: Sequence[Tensor]) -> list[tuple[Any, Unpack | None]]:
    """Pack what a row saved: by reference to its node where it is cheap to compute again, else through the hooks."""
    again = {
        id(x.data): x
        for x in inputs
        if x.node is not None and x.slot in x.node.op.again and x.node.region == TAPE.region
    }
    kept: list[tuple[Any, Unpack | None]] = []
    for value in saved:
        source = again.get(id(value))
        if source is not None:
            kept.append(((source.node, source.slot), _compute_again))
        else:
            kept.append(_pack(value) if TAPE.hooks and is_array(value) else (value, None))
    return kept


def _pack(value: Array) -> tuple[Any, Unpack | None]:
    """Ask the hooks, innermost first; one that has nothing to say returns NotImplemented."""
    for pack, unpack in reversed(TAPE.hooks):
        packed = pack(value)
        if packed is not NotImplemented:
            return packed, unpack
    return value, None


def _compute_again(reference: tuple[Node, int]) -> Array:
    node, slot = reference
    return node.op.again[slot](node.values(), **node.attrs)


def _describe(op: Op, arrays: Sequence[Any], attrs: dict[str, Any], error: Exception) -> str:
    shapes = ", ".join(f"{tuple(a.shape)} {a.dtype}" for a in arrays)
    shown = {k: v for k, v in attrs.items() if isinstance(v, (int, float, str, bool, tuple, type(None)))}
    return explain(f"{op.name}: {error}", got=f"inputs {shapes}" + (f"; {shown}" if shown else ""))


def backward(tensors: Any, grads: Any = None, *, retain_graph: bool = False) -> None:
    """Add the gradients of ``tensors`` to ``.grad`` of every leaf they were computed from.

    Parameters
    ----------
    tensors : Tensor or sequence of Tensor
        Scalars, unless ``grads`` says what to start from.
    grads : array, float or sequence of them, optional
        Cotangents, of the shapes of ``tensors``; default 1.
    retain_graph : bool
        Keep what was saved, so that backward can run through it once more.

    Raises
    ------
    RuntimeError
        If nothing needs gradients, or backward ran here before without ``retain_graph``.
    """
    run([seeded(root, seed) for root, seed in paired(listed(tensors), grads)], Replay(retain_graph))


def listed(tensors: Any) -> list[Any]:
    """Return one tensor, or what behaves as one, or a sequence of them, as a list."""
    return [tensors] if hasattr(type(tensors), "requires_grad") else list(tensors)


def seeded(root: Any, seed: Any) -> tuple[Tensor, Array]:
    """Return where backward starts, and with what: a type with ``__seeded__(seed)`` knows it for its objects."""
    handler = getattr(type(root), "__seeded__", None)
    if handler is not None:
        start: tuple[Tensor, Array] = handler(root, seed)
        return start
    return root, seed_of(root, seed)


def paired(roots: Sequence[Any], grads: Any) -> list[tuple[Any, Any]]:
    """Return each root with what it starts from: ``grads`` has one a root, or is for all."""
    seeds = list(grads) if isinstance(grads, (list, tuple)) else [grads] * len(roots)
    if len(seeds) != len(roots):
        raise ValueError(
            explain("backward: number of cotangents", got=len(seeds), expected=f"{len(roots)}, one a tensor")
        )
    return list(zip(roots, seeds, strict=True))


def seed_of(root: Tensor, seed: Any) -> Array:
    """Return the cotangent to start from, in the shape and dtype of ``root``."""
    if not root.requires_grad:
        raise RuntimeError(
            explain("backward: the tensor does not depend on anything that needs gradients", got=repr(root))
        )
    if seed is None:
        if root.data.size != 1:
            raise RuntimeError(
                explain(
                    "backward: only a scalar has a gradient of its own",
                    got=f"shape {root.shape}",
                    do="pass grads",
                )
            )
        return np.ones_like(root.data)
    seed = (
        np.asarray(seed.data if isinstance(seed, Tensor) else seed)
        if not hasattr(seed, "__cuda_array_interface__")
        else seed
    )
    if seed.shape not in (root.shape, ()):
        raise RuntimeError(explain("backward: a cotangent has another shape", got=seed.shape, expected=root.shape))
    return np.broadcast_to(seed, root.shape).astype(root.data.dtype)


def run(seeds: Sequence[tuple[Tensor, Array]], replay: Replay) -> None:
    """Replay the tape below the roots in reverse recorded order, then what was queued."""
    TAPE.replays.append(replay)
    try:
        replay.run(seeds)
    finally:
        TAPE.replays.pop()


def queue_callback(fn: Callable[[], None]) -> None:
    """Have ``fn`` called once when the backward that is running has finished; the same ``fn`` is queued once."""
    if not TAPE.replays:
        raise RuntimeError("queue_callback: no backward is running\n  do       call it from a vjp or a hook")
    TAPE.replays[-1].callbacks.setdefault(fn, None)


def is_replaying() -> bool:
    """Say whether a backward is running on this thread, or what it needs is being computed again."""
    return bool(TAPE.replays) or TAPE.again > 0


def mark() -> int:
    """Return a number between those of all nodes recorded so far, on any thread, and those of later ones."""
    return next(_sequence)


def is_collecting() -> bool:
    """Say whether the backward that is running adds to the gradients of leaves; ``grad`` does not."""
    return bool(TAPE.replays) and TAPE.replays[-1].collects


def is_grad_enabled() -> bool:
    """Say whether operations are recorded on this thread."""
    return TAPE.recording


@contextmanager
def _grad_mode(recording: bool) -> Iterator[None]:
    before, TAPE.recording = TAPE.recording, recording
    try:
        yield
    finally:
        TAPE.recording = before


def no_grad() -> Any:
    """Record nothing in a ``with`` block, or in a function decorated with ``@no_grad()``."""
    return _grad_mode(False)


def enable_grad() -> Any:
    """Record again inside a ``no_grad`` block."""
    return _grad_mode(True)


@contextmanager
def saved_values(pack: Pack, unpack: Unpack, *, is_region: bool = False) -> Iterator[None]:
    """Pass what is kept for backward through ``pack`` while active; backward reads it back through ``unpack``.

    Hooks form a chain: ``pack(array)`` returns NotImplemented for "not mine", and the next outer one is asked.

    Parameters
    ----------
    is_region : bool
        Whether values from outside pass through, too, where a reference to their node would do; likewise, outside,
        those from inside.
    """
    before = TAPE.region
    TAPE.hooks.append((pack, unpack))
    TAPE.region = mark() if is_region else before
    try:
        yield
    finally:
        TAPE.hooks.pop()
        TAPE.region = before


@contextmanager
def computing_by(compute: Compute) -> Iterator[None]:
    """Have ``compute(op, arrays, recording, attrs)`` return outputs and saved values of operations in a block."""
    before, TAPE.compute = TAPE.compute, compute
    try:
        yield
    finally:
        TAPE.compute = before


@contextmanager
def computing_again() -> Iterator[None]:
    """Record in a block what was recorded before, for its saved values: see :func:`is_replaying`."""
    TAPE.again += 1
    try:
        with enable_grad():
            yield
    finally:
        TAPE.again -= 1
