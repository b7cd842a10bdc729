"""Gradients as values, and a check of vjps against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.autograd.graph import gradients_with_graph
from hpcdist.autograd.op import Op
from hpcdist.autograd.replay import Replay, is_fixed, may_share
from hpcdist.autograd.tape import apply, listed, paired, run, seed_of, seeded
from hpcdist.autograd.tensor import Tensor
from hpcdist.errors import explain

__all__ = ["check_vjp", "grad"]


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """Return the gradients of ``outputs`` with respect to ``inputs``; every ``.grad`` stays as it is.

    Parameters
    ----------
    outputs, inputs : Tensor or sequence of Tensor
        Inputs may lie anywhere in the graph.
    grad_outputs : array or sequence of arrays, optional
        Cotangents of the outputs; default 1, for scalars.
    retain_graph : bool
        Keep what was saved for another backward.
    create_graph : bool
        Return tensors that can be differentiated again, and keep the graph; for real values and the operations that
        have a vjp written in operations (``hpcdist.autograd.second``).
    allow_unused : bool
        Return None for an input that no output depends on, instead of raising.

    Returns
    -------
    tuple of array, or of Tensor with ``create_graph``
        One an input, of its shape and dtype; for a distributed tensor a distributed one.
    """
    wanted = listed(inputs)
    pairs = paired(listed(outputs), grad_outputs)
    found: tuple[Any, ...]
    if create_graph:
        started = [(root, _with_graph(root, seed)) for root, seed in pairs]
        found = tuple(gradients_with_graph(started, wanted))
    else:
        leaves = [t if isinstance(t, Tensor) else t.local for t in wanted]
        replay = Replay(retain_graph, leaves)
        run([seeded(root, seed) for root, seed in pairs], replay)
        arrays = _apart([replay.gradient_of(t) for t in leaves])
        found = tuple(_as(t, array) for t, array in zip(wanted, arrays, strict=True))
    missing = [i for i, g in enumerate(found) if g is None]
    if missing and not allow_unused:
        raise RuntimeError(
            explain(f"grad: no output depends on input {missing[0]}", do="say allow_unused=True to get None")
        )
    return found


def _apart(gradients: list[Array | None]) -> tuple[Array | None, ...]:
    """Return gradients that can be written one by one: rows may hand out one array twice, or a stretched one."""
    mine: list[Array | None] = []
    for g in gradients:
        shared = g is not None and any(other is not None and may_share(g, other) for other in mine)
        mine.append(g.copy() if g is not None and (shared or is_fixed(g)) else g)
    return tuple(mine)


def _as(wanted: Any, gradient: Array | None) -> Any:
    """Return a gradient as what stands for it: that of a distributed tensor is one."""
    handler = getattr(type(wanted), "__gradient__", None)
    return gradient if handler is None or gradient is None else handler(wanted, gradient)


def _with_graph(root: Any, seed: Any) -> Tensor:
    """Return the cotangent to start from; a tensor that is one keeps its graph."""
    if not isinstance(root, Tensor):
        do = "differentiate once, or compute on one rank"
        raise TypeError(explain("grad: create_graph of a distributed tensor", got=type(root).__name__, do=do))
    whole = Tensor(seed_of(root, seed))
    return seed.to(root.dtype).expand(root.shape) if isinstance(seed, Tensor) else whole


def check_vjp(
    fn: Op | Callable[..., Any],
    *inputs: Array,
    step: float = 1e-6,
    tolerance: float = 1e-6,
    seed: int = 0,
    **attrs: Any,
) -> None:
    """Compare a vjp with central differences along random directions, in float64.

    For directions v and w: ``<J v, w>`` by differences must equal ``<v, vjp(w)>``, input by input.

    Parameters
    ----------
    fn : Op or function of tensors
        What to check; returns a tensor or a tuple of them.
    inputs : array
        float64; integer and bool arrays are passed on as they are.
    step : float
        Step of the differences.
    tolerance : float
        Largest difference, relative to the larger of the two numbers and 1.

    Raises
    ------
    ValueError
        If they differ; names the input and both numbers.
    """
    rng = np.random.default_rng(seed)

    def outputs(arrays: Sequence[Array]) -> tuple[Tensor, ...]:
        leaves.clear()
        leaves.extend(Tensor(a, requires_grad=a.dtype.kind in "fc") for a in arrays)
        result = apply(fn, *leaves, **attrs) if isinstance(fn, Op) else fn(*leaves, **attrs)
        return result if isinstance(result, tuple) else (result,)

    leaves: list[Tensor] = []
    base = [np.asarray(a, np.float64) if a.dtype.kind == "f" else a for a in inputs]
    results = [t for t in outputs(base) if t.requires_grad]
    directions = [_direction(rng, t.data) for t in results]
    targets = [t for t in leaves if t.requires_grad]
    found = grad(results, targets, directions, allow_unused=True)
    places = [i for i, a in enumerate(base) if a.dtype.kind in "fc"]
    for place, gradient in zip(places, found, strict=True):
        v = _direction(rng, base[place])
        ends = []
        for h in (step, -step):
            moved = [a + h * v if i == place else a for i, a in enumerate(base)]
            ends.append([t.data for t in outputs(moved) if t.requires_grad])
        by_difference = sum(_inner((hi - lo) / (2 * step), w) for hi, lo, w in zip(*ends, directions, strict=True))
        by_vjp = 0.0 if gradient is None else _inner(v, gradient)
        if not abs(by_difference - by_vjp) <= tolerance * max(1.0, abs(by_difference), abs(by_vjp)):
            name = fn.name if isinstance(fn, Op) else getattr(fn, "__name__", "fn")
            raise ValueError(
                explain(
                    f"check_vjp: {name}: input {place}",
                    got=f"vjp {by_vjp!r}",
                    expected=f"{by_difference!r} by differences",
                )
            )


def _direction(rng: np.random.Generator, like: Array) -> Array:
    v: Array = rng.standard_normal(like.shape)
    return v + 1j * rng.standard_normal(like.shape) if like.dtype.kind == "c" else v


def _inner(a: Array, b: Array) -> float:
    # the real part: a gradient of complex values is, as torch's, the direction of steepest ascent
    return float(np.vdot(a, b).real)
