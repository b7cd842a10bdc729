"""Gradients with a graph of their own: a replay of the tape whose every step is recorded on it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.autograd.replay import edge_key, key_of
from hpcdist.autograd.second import SECOND
from hpcdist.autograd.tape import Node, enable_grad
from hpcdist.autograd.tensor import Tensor
from hpcdist.errors import explain

__all__ = ["gradients_with_graph"]


def gradients_with_graph(seeds: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradients of ``wanted``, as tensors that can be differentiated; None for what nothing reached.

    Parameters
    ----------
    seeds : sequence of (root, cotangent)
    wanted : sequence of Tensor
        Anywhere in the graph.

    Raises
    ------
    RuntimeError
        If an operation on the way has no vjp written in operations; names it.
    """
    nodes = _below([root for root, _ in seeds])
    goals = {key_of(t) for t in wanted}
    useful = _leading_to(goals, nodes)
    found: dict[Any, Tensor] = {}
    with enable_grad():
        for root, seed in seeds:
            _add(found, key_of(root), seed)
        for node in reversed(nodes):
            grads = [found.get((node.seq, slot)) for slot in range(len(node.outputs))]
            if node.seq in useful and any(g is not None for g in grads):
                for edge, g in zip(node.edges, _vjp(node, grads, goals, useful), strict=True):
                    if edge is not None and g is not None:
                        _add(found, edge_key(edge), g.to(_output(edge)[1]))
    return [found.get(key_of(t)) for t in wanted]


def _below(roots: Sequence[Tensor]) -> list[Node]:
    """Return the nodes that the roots were computed by, in recorded order."""
    nodes: dict[int, Node] = {}
    stack = [root.node for root in roots if root.node is not None]
    while stack:
        node = stack.pop()
        if node.seq not in nodes:
            nodes[node.seq] = node
            stack += [edge[0] for edge in node.edges if edge is not None and isinstance(edge[0], Node)]
    return [nodes[seq] for seq in sorted(nodes)]


def _leading_to(goals: set[Any], nodes: Sequence[Node]) -> set[int]:
    useful: set[int] = set()
    for node in nodes:
        if any(e is not None and (edge_key(e) in goals or getattr(e[0], "seq", None) in useful) for e in node.edges):
            useful.add(node.seq)
    return useful


def _vjp(node: Node, grads: list[Tensor | None], goals: set[Any], useful: set[int]) -> Sequence[Tensor | None]:
    form = SECOND.get(node.op.name)
    if form is None:
        raise RuntimeError(
            explain(
                f"grad: the gradient of {node.op.name!r} cannot be differentiated again",
                expected=f"operations among {', '.join(sorted(SECOND))}",
                do="write the function in these, or ask for the gradient without create_graph",
            )
        )
    _check(node, goals)
    shapes = [
        _output(e)[0] if e is not None and (edge_key(e) in goals or getattr(e[0], "seq", None) in useful) else None
        for e in node.edges
    ]
    saved = [_attached(node, keep, value) for keep, value in zip(form.keeps, node.values(), strict=False)]
    results: Sequence[Tensor | None] = form.vjp(grads, saved or node.values(), shapes, **node.attrs)
    return results


def _check(node: Node, goals: set[Any]) -> None:
    """Refuse what the plain replay does with arrays only."""
    if any(dtype.kind == "c" for _, dtype in [o[:2] for o in node.outputs] + [_output(e) for e in node.edges if e]):
        raise RuntimeError(
            explain(
                "grad: create_graph is for real values",
                got=f"complex ones at {node.op.name!r}",
                do="write the function in real and imaginary parts",
            )
        )
    if node.hooks or any(e and e[1] is None and e[0].hooks and edge_key(e) in goals for e in node.edges):
        raise RuntimeError(
            explain(
                "grad: a hook takes arrays, so that create_graph cannot differentiate what it does",
                got=f"a hook at {node.op.name!r}",
                do="remove it (register_hook returned the function that does), or ask without create_graph",
            )
        )


def _attached(node: Node, keep: int, value: Any) -> Tensor:
    """Return a saved value as the tensor it was: input ``keep`` of the node, or output ``~keep``."""
    if keep < 0:
        return Tensor._of_node(value, node, ~keep)
    edge = node.edges[keep]
    if edge is None:
        return Tensor(value)
    return edge[0] if isinstance(edge[0], Tensor) else Tensor._of_node(value, edge[0], edge[1] or 0)


def _output(edge: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of what an edge comes from."""
    source, slot = edge
    return (source.shape, source.dtype) if slot is None else source.outputs[slot][:2]


def _add(found: dict[Any, Tensor], key: Any, value: Tensor) -> None:
    found[key] = found[key] + value if key in found else value
