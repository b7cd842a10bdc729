"""The tree by which micro-batches are added up: one shape for a number of leaves, whoever holds which of them.

Node (level, index) is the sum of leaves ``index << level`` to ``(index + 1) << level``: of its left child, and of its
right child if there is one. So sums of floats have the same bits however leaves are shared out, and a run of n
neighbouring leaves is at most ``2 * log2(n)`` nodes, which is all that need travel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from hpcdist.array import Array
from hpcdist.autograd import empty
from hpcdist.errors import explain
from hpcdist.kernels.precision import wide

__all__ = ["Node", "Stack", "blocks", "total"]


class Node(NamedTuple):
    """The sum of a whole subtree.

    Attributes
    ----------
    level, place : int
        Which one: its level, and its index there.
    value : array or float
    """

    level: int
    place: int
    value: Any

    @property
    def start(self) -> int:
        """The first leaf of it."""
        return self.place << self.level

    @property
    def stop(self) -> int:
        """The leaf after the last one."""
        return (self.place + 1) << self.level


class Stack:
    """Sums of whole subtrees of a run of leaves, as few as there can be: a binary counter."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def push(self, level: int, place: int, value: Any) -> None:
        """Take the subtree that follows those that are here; an array is kept, and may be added to.

        Raises
        ------
        ValueError
            If it is not the next one.
        """
        node = Node(level, place, value)
        if self.nodes and node.start != self.nodes[-1].stop:
            expected = f"{self.nodes[-1].stop}"
            raise ValueError(explain("tree: the next leaf", got=node.start, expected=expected))
        self.nodes.append(node)
        while len(self.nodes) > 1 and _are_siblings(*self.nodes[-2:]):
            self._merge()

    def read(self, index: int, leaf: Array) -> None:
        """Take a leaf whose memory stays the caller's; 16-bit floats are added up as float32."""
        top = self.nodes[-1] if self.nodes else None
        if top is not None and _are_siblings(top, Node(0, index, leaf)):
            self.push(0, index, leaf)  # it is added to another, and gone
        else:
            copy = empty(leaf.shape, wide(leaf[:0]).dtype, leaf)
            copy[...] = leaf
            self.push(0, index, copy)

    def finish(self) -> Any:
        """Return the root's value, of a tree that ends here; nothing is left."""
        while len(self.nodes) > 1:  # a node without a right child is its left child, one level down or more
            self._merge()
        return self.nodes.pop().value

    def _merge(self) -> None:
        (level, place, value), (_, _, right) = self.nodes[-2:]
        value += right  # an array keeps its memory
        self.nodes[-2:] = [Node(level + 1, place >> 1, value)]


def _are_siblings(a: Node, b: Node) -> bool:
    return a.level == b.level and a.place ^ 1 == b.place and a.place < b.place


def blocks(start: int, stop: int) -> list[tuple[int, int]]:
    """Return (level, index) of the subtrees that leaves ``start`` to ``stop`` are, in order, as few as possible."""
    found = []
    while start < stop:
        level = (stop - start).bit_length() - 1
        if start:
            level = min(level, (start & -start).bit_length() - 1)
        found.append((level, start >> level))
        start += 1 << level
    return found


def total(leaves: Iterable[float]) -> float:
    """Return the sum of numbers, of which there is one at least, by the tree."""
    stack = Stack()
    for index, leaf in enumerate(leaves):
        stack.push(0, index, leaf)
    return float(stack.finish())
