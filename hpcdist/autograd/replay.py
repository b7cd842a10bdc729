"""One run of backward: gradients under way, where they are collected, and the order of replay."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdist.array import Array, is_device
from hpcdist.autograd.pool import allocator
from hpcdist.errors import explain

if TYPE_CHECKING:
    from hpcdist.autograd.tape import Node
    from hpcdist.autograd.tensor import Tensor

__all__ = ["Cotangent", "Into", "Leaf", "Replay", "edge_key", "is_fixed", "key_of", "may_share"]


class Into(ABC):
    """Where the gradient of one input goes."""

    __slots__ = ("dtype", "shape")
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def place(self) -> tuple[Array, float]:
        """Return ``(array, beta)``; the caller computes ``array = gradient + beta * array``."""

    def give(self, value: Array) -> None:
        """Hand over an array as the gradient; it may be kept without a copy, and must not be changed afterwards."""
        array, beta = self.place()
        if beta:
            array += value
        else:
            array[...] = value


class Cotangent(Into):
    """The gradient of one output of a node, or of a leaf with hooks, while it is being collected."""

    __slots__ = ("allocate", "array", "home", "replay", "uses")

    def __init__(
        self, replay: Replay, shape: tuple[int, ...], dtype: np.dtype[Any], allocate: Any, *, home: Any = None
    ) -> None:
        self.replay, self.shape, self.dtype, self.allocate, self.home = replay, shape, dtype, allocate, home
        self.array: Array | None = None
        self.uses = 0

    def place(self) -> tuple[Array, float]:
        if self.array is not None:
            self.array = self.replay.own(self)
            return self.array, 1.0
        if self.home is not None:
            self.array, beta = self.home()
            return self.array, beta
        self.array = self.allocate(self.shape, self.dtype)
        return self.array, 0.0

    def give(self, value: Array) -> None:
        if self.array is None and self.home is None and value.dtype == self.dtype and value.shape == self.shape:
            self.array = value
        else:
            super().give(value)


class Leaf(Into):
    """The gradient of a leaf, collected in its ``.grad``."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape, self.dtype = tensor, tensor.data.shape, tensor.data.dtype

    def place(self) -> tuple[Array, float]:
        return self.tensor.place()


class Replay:
    """One backward: built, run once, thrown away.

    Parameters
    ----------
    retain_graph : bool
        Keep what nodes saved.
    wanted : sequence of Tensor, optional
        Keep the gradients of these for :meth:`gradient_of`, and leave every ``.grad`` alone.
    """

    def __init__(self, retain_graph: bool = False, wanted: Sequence[Tensor] | None = None) -> None:
        self.retain_graph = retain_graph
        self.callbacks: dict[Callable[[], None], None] = {}
        self._captured: dict[tuple[int, int | None], Array] = {}
        self._wanted = None if wanted is None else {key_of(t) for t in wanted}
        self._nodes: dict[int, Node] = {}
        self._cotangents: dict[int, list[Cotangent]] = {}
        self._leaves: dict[int, Cotangent] = {}
        self._current: list[Array | None] = []
        self._shown: list[Array] = []

    def run(self, seeds: Sequence[tuple[Tensor, Array]]) -> None:
        """Collect the gradients of all that the seeded tensors were computed from."""
        self._find([root.node for root, _ in seeds if root.node is not None])
        try:
            self._replay_all(seeds)
        except BaseException:
            for node in self._nodes.values():
                if node.op.missed is not None:
                    node.op.missed(**node.attrs)
            raise

    def _replay_all(self, seeds: Sequence[tuple[Tensor, Array]]) -> None:
        useful = self._useful()
        for root, seed in seeds:
            into = self._into((root, None) if root.node is None else (root.node, root.slot), useful)
            if into is not None:
                into.give(seed)
        for seq in sorted(self._nodes, reverse=True):
            self._replay(self._nodes.pop(seq), useful)
        for root, _ in seeds:  # leaves that nothing but the seed reached
            self._finish_if_whole(root)
        while self.callbacks:  # one may queue another
            fn = next(iter(self.callbacks))
            del self.callbacks[fn]
            fn()

    @property
    def collects(self) -> bool:
        """Whether gradients are added to those of leaves."""
        return self._wanted is None

    def nodes_ahead(self) -> Iterable[Node]:
        """Return the nodes that were found, and have not been replayed."""
        return self._nodes.values()

    def gradient_of(self, wanted: Tensor) -> Array | None:
        """Return what was captured for one of ``wanted``; None: nothing reached it."""
        return self._captured.get(key_of(wanted))

    def own(self, target: Cotangent) -> Array:
        """Return the array of ``target`` to be written: a copy if anybody else, or another element, has its memory."""
        assert target.array is not None
        others = [c.array for group in self._cotangents.values() for c in group if c is not target]
        others += [c.array for c in self._leaves.values() if c is not target]
        for other in itertools.chain(others, self._current, self._shown):
            if other is not None and may_share(target.array, other):
                return _copy(target)
        return _copy(target) if is_fixed(target.array) else target.array

    def _find(self, stack: list[Node]) -> None:
        """Find every node below the roots, and count the uses of leaves that wait for all of them."""
        while stack:
            node = stack.pop()
            if node.seq in self._nodes:
                continue
            self._nodes[node.seq] = node
            for edge in node.edges:
                if edge is None:
                    continue
                if edge[1] is not None:
                    stack.append(edge[0])
                elif self._waits(edge[0]):
                    self._leaf(edge[0]).uses += 1

    def _waits(self, leaf: Tensor) -> bool:
        return bool(leaf.hooks or leaf.done_hooks) if self._wanted is None else (id(leaf), None) in self._wanted

    def _leaf(self, leaf: Tensor) -> Cotangent:
        if id(leaf) not in self._leaves:
            self._leaves[id(leaf)] = Cotangent(self, leaf.data.shape, leaf.data.dtype, allocator(leaf.data))
        return self._leaves[id(leaf)]

    def _useful(self) -> set[int] | None:
        """Nodes through which something wanted is reached; None: all are."""
        if self._wanted is None:
            return None
        useful: set[int] = set()
        for seq in sorted(self._nodes):
            node = self._nodes[seq]
            if any(
                edge and (edge_key(edge) in self._wanted or getattr(edge[0], "seq", None) in useful)
                for edge in node.edges
            ):
                useful.add(seq)
        return useful

    def _into(self, edge: Any, useful: set[int] | None) -> Into | None:
        if edge is None:
            return None
        source, slot = edge
        if slot is None:
            if self._waits(source):
                return self._leaf(source)
            return Leaf(source) if self._wanted is None else None
        if useful is not None and source.seq not in useful and edge_key(edge) not in (self._wanted or ()):
            return None
        return self._outputs(source)[slot]

    def _outputs(self, node: Node) -> list[Cotangent]:
        group = self._cotangents.get(node.seq)
        if group is None:
            home = node.op.home
            group = [
                Cotangent(self, shape, dtype, allocate, home=home and functools.partial(home, slot, **node.attrs))
                for slot, (shape, dtype, allocate) in enumerate(node.outputs)
            ]
            self._cotangents[node.seq] = group
        return group

    def _replay(self, node: Node, useful: set[int] | None) -> None:
        # a function of its own: its locals die before the next node runs, so their memory is free again
        group = self._cotangents.get(node.seq)
        if group is not None:
            for slot in node.op.overwrites:
                if group[slot].array is not None:
                    group[slot].array = self.own(group[slot])
            del self._cotangents[node.seq]
            grads = self._hooked(node, [c.array for c in group])
            if (useful is None or node.seq in useful) and any([g is not None for g in grads]):
                self._current = grads
                values = node.values()
                if self.retain_graph and node.op.gives_saved:
                    values = [v.copy() if hasattr(v, "copy") else v for v in values]
                node.op.vjp([self._into(edge, useful) for edge in node.edges], grads, values, **node.attrs)
                self._current = []
        if not self.retain_graph and (useful is None or node.seq in useful):
            node.saved = None
        self._finish_leaves(node)

    def _hooked(self, node: Node, grads: list[Array | None]) -> list[Array | None]:
        for slot, hook in node.hooks:
            grads[slot] = self._changed(hook, grads[slot])
        for slot, g in enumerate(grads):
            if g is not None and self._wanted is not None and (node.seq, slot) in self._wanted:
                self._captured[node.seq, slot] = g
                self._shown.append(g)
        for slot in node.op.overwrites:
            g = grads[slot]
            if g is not None and any(g is shown for shown in self._shown):
                grads[slot] = g.copy()
        return grads

    def _changed(self, hook: Callable[[Array], Array | None], gradient: Array | None) -> Array | None:
        """Show a gradient to a hook, which may keep it, and return what the hook makes of it, which it may keep too."""
        if gradient is None:
            return None
        changed = hook(gradient)
        result = gradient if changed is None else changed
        if getattr(result, "shape", None) != gradient.shape:
            got = getattr(result, "shape", type(result).__name__)
            raise RuntimeError(explain("hook: the gradient that it returned", got=got, expected=gradient.shape))
        self._shown += [gradient, result]
        return result

    def _finish_leaves(self, node: Node) -> None:
        """Hand over the gradients of leaves that have now heard from all their users."""
        for edge in node.edges:
            if edge is None or edge[1] is not None or id(edge[0]) not in self._leaves:
                continue
            self._leaves[id(edge[0])].uses -= 1
            self._finish_if_whole(edge[0])

    def _finish_if_whole(self, leaf: Tensor) -> None:
        collected = self._leaves.get(id(leaf))
        if collected is not None and not collected.uses:
            del self._leaves[id(leaf)]
            self._finish_leaf(leaf, collected.array)

    def _finish_leaf(self, leaf: Tensor, gradient: Array | None) -> None:
        for hook in leaf.hooks:
            gradient = self._changed(hook, gradient)
        if gradient is None:
            return
        if self._wanted is not None:
            self._captured[id(leaf), None] = gradient
            self._shown.append(gradient)
            return
        Leaf(leaf).give(gradient)
        for done in leaf.done_hooks:
            done(leaf)


def key_of(tensor: Tensor) -> tuple[int, int | None]:
    """Return what tells a tensor's place in the graph from every other."""
    return (id(tensor), None) if tensor.node is None else (tensor.node.seq, tensor.slot)


def edge_key(edge: Any) -> tuple[int, int | None]:
    """Return the :func:`key_of` of the tensor at the other end of an edge."""
    return (id(edge[0]), None) if edge[1] is None else (edge[0].seq, edge[1])


def _copy(target: Cotangent) -> Array:
    copy: Array = target.allocate(target.shape, target.dtype)
    copy[...] = target.array
    return copy


def is_fixed(a: Array) -> bool:
    """Say whether ``a`` cannot be written, or several of its elements lie in one place (CuPy lets that be written)."""
    stretched = any(stride == 0 and n > 1 for stride, n in zip(a.strides, a.shape, strict=True))
    return stretched or not getattr(a.flags, "writeable", True)


def may_share(a: Array, b: Array) -> bool:
    """Say whether writing ``a`` might change ``b``."""
    if is_device(a):
        # CuPy has no bounds check of its own that is as cheap; a copy too many is harmless
        return True
    return np.may_share_memory(a, b)
