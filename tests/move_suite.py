"""Every move of the redistribution table against a global NumPy answer: bodies of tests that take a communicator."""

import contextlib
import functools

import numpy as np

from hpcdist.autograd import Tensor
from hpcdist.dtensor import Invariant, Partial, Replicate, Shard, local_shape, move, redistribute
from hpcdist.dtensor.move import transpose
from hpcdist.dtensor.placements import Share, dual

S0, S1, P, R, INV = Shard(0), Shard(1), Partial(), Replicate(), Invariant()
AVG = Partial("avg")
LINEAR = (S0, S1, P, R, INV)
PAIRS = [(src, dst) for src in LINEAR for dst in LINEAR if src != dst]
SCALED_PAIRS = [(src, dst) for src in (*LINEAR, AVG) for dst in (*LINEAR, AVG) if src != dst and AVG in (src, dst)]
SHAPES = [(4, 6), (5, 7), (3, 2), (1, 4), (0, 3), (6, 5, 2)]
CUTS = {
    (6, 5): (Shard(0, unit=2), Shard(0, unit=3), Shard(1, sections=(4, 1))),
    (7, 4): (Shard(0, unit=(2, 1), sections=(4, 3)), Shard(0, sections=(3, 0, 4)), Shard(1, sections=(2, 2))),
    (2, 12, 3): (Shard(1, unit=(2, 3, 2), sections=(4, 6, 2)), Shard(1, unit=4), Shard(2, sections=(1, 2))),
    (3, 0): (Shard(1, unit=5), Shard(1, sections=(0, 0)), Shard(0, unit=3)),
}
"""Shards that count in units or cut sections each for itself, by the shape of the array they cut."""
CUT_MOVES = [
    (shape, src, dst)
    for shape, cuts in CUTS.items()
    for src in (*cuts, *LINEAR)
    for dst in (*cuts, *LINEAR)
    if src != dst and not {src, dst} <= set(LINEAR)
]

COLLECTIVE = {
    ("Shard", "Shard"): "iall_to_all",
    ("Shard", "Replicate"): "iall_gather",
    ("Shard", "Invariant"): "iall_gather",
    ("Partial", "Shard"): "ireduce_scatter",
    ("Partial", "Replicate"): "iall_reduce",
    ("Partial", "Invariant"): "iall_reduce",
}
VERBS = ("iall_reduce", "iall_gather", "ireduce_scatter", "iall_to_all", "ibroadcast", "ibarrier", "isend", "irecv")


@contextlib.contextmanager
def recorded(comm):
    """Yield a list that gets (verb, bytes brought) of every verb posted on ``comm`` in the block."""
    calls = []

    def post(verb, original, *args, **kwargs):
        brought = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
        calls.append((verb, sum(x.nbytes for x in brought)))
        return original(*args, **kwargs)

    for verb in VERBS:
        setattr(comm, verb, functools.partial(post, verb, getattr(comm, verb)))
    try:
        yield calls
    finally:
        for verb in VERBS:
            delattr(comm, verb)


def whole_array(shape, dtype, seed=0):
    """Small integers, so that sums are exact in every dtype."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, shape)
    return (values + 1j * rng.integers(-3, 4, shape) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def owners(n, placement, size):
    """Return the rank that holds each of ``n`` elements: in a section, a rank after the other is given whole units."""
    sections = placement.sections or (n,)
    units = placement.unit if isinstance(placement.unit, tuple) else (placement.unit,) * len(sections)
    each = [
        np.arange(extent) // unit // max(1, -(-(extent // unit) // size))
        for extent, unit in zip(sections, units, strict=True)
    ]
    return np.concatenate(each)


def pieces(whole, placement, size):
    """Return what each rank holds of ``whole``, cut by hand."""
    if isinstance(placement, Shard):
        owner, before = (
            owners(whole.shape[placement.dim], placement, size),
            (slice(None),) * (placement.dim % whole.ndim),
        )
        return [whole[(*before, owner == coord)] for coord in range(size)]
    if isinstance(placement, Share):
        return [whole / size] * size
    if isinstance(placement, Partial):
        parts = [whole_array(whole.shape, whole.dtype, seed=100 + coord) for coord in range(size - 1)]
        total = whole * size if placement.op == "avg" else whole
        return [*parts, total - sum(parts, np.zeros_like(whole))]
    return [whole] * size


def joined(parts, placement):
    """Return the array that ranks hold as ``parts``; where all hold the same, check that they do."""
    if isinstance(placement, Shard):
        lined_up = np.concatenate(parts, axis=placement.dim)
        owner = owners(lined_up.shape[placement.dim], placement, len(parts))
        back = np.argsort(np.argsort(owner, kind="stable"))
        return lined_up[(*(slice(None),) * (placement.dim % lined_up.ndim), back)]
    if isinstance(placement, Partial):
        total = sum(parts[1:], parts[0])
        return total / len(parts) if placement.op == "avg" else total
    for part in parts:
        np.testing.assert_array_equal(part, parts[0])
    return parts[0] * len(parts) if isinstance(placement, Share) else parts[0]


def inner(comm, x, g, placement):
    """Return <x, g> over all ranks; what is invariant counts once, as all ranks hold one value and one gradient."""
    each = comm.all_gather_object(np.vdot(x.astype(np.complex128), g.astype(np.complex128)))
    return each[0] if placement == INV else sum(each)


def expected_calls(x, src, dst, shape, size):
    """Return the one collective of a move, or none where it is free; it brings all that this rank holds.

    Everything is free on one rank.
    """
    verb = COLLECTIVE.get((type(src).__name__, type(dst).__name__))
    if isinstance(src, Shard) and isinstance(dst, Shard) and src.dim == dst.dim:
        verb = None if np.array_equal(*(owners(shape[src.dim], p, size) for p in (src, dst))) else verb
    return [(verb, x.nbytes)] if verb and size > 1 else []


def check_values(comm, src, dst, shape, dtype):
    """The right values in the right layout, by the one collective the table names, of this rank's bytes."""
    whole = whole_array(shape, dtype)
    x = pieces(whole, src, comm.size)[comm.rank]
    before = x.copy()
    with recorded(comm) as calls:
        y = move(x, src, dst, comm, shape)
    assert calls == expected_calls(x, src, dst, shape, comm.size)
    assert y.shape == local_shape(shape, dst, comm.size, comm.rank)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(joined(comm.all_gather_object(y), dst), whole)


def check_transpose(comm, src, dst, shape):
    """<move(x), g> == <x, move_T(g)>, and the gradient is placed as the dual says."""
    x = pieces(whole_array(shape, np.float64), src, comm.size)[comm.rank]
    g = pieces(whole_array(shape, np.float64, seed=7), dual(dst), comm.size)[comm.rank]
    y = move(x, src, dst, comm, shape)
    back = transpose(src, dst)
    with recorded(comm) as calls:
        gradient = move(g, *back, comm, shape)
    assert back == (dual(dst), dual(src))
    assert AVG in (src, dst) or calls == expected_calls(g, *back, shape, comm.size)
    joined(comm.all_gather_object(gradient), dual(src))
    np.testing.assert_allclose(inner(comm, y, g, dst), inner(comm, x, gradient, src), rtol=1e-13, atol=1e-11)


def check_gradient(comm, src, dst, shape):
    """Autograd makes the transposed move, with its collective and no other."""
    x = Tensor(pieces(whole_array(shape, np.float64), src, comm.size)[comm.rank], requires_grad=True)
    g = pieces(whole_array(shape, np.float64, seed=7), dual(dst), comm.size)[comm.rank]
    with recorded(comm) as calls:
        y = redistribute(x, src, dst, comm, shape)
        y.backward(g)
    back = transpose(src, dst)
    expected = move(g, *back, comm, shape)
    forward = expected_calls(x.data, src, dst, shape, comm.size)
    assert calls == forward + expected_calls(g, *back, shape, comm.size)
    np.testing.assert_array_equal(y.data, move(x.data, src, dst, comm, shape))
    np.testing.assert_array_equal(x.grad, expected)


def check_move(comm, src, dst, shape):
    """All of the above."""
    check_values(comm, src, dst, shape, np.float32)
    check_transpose(comm, src, dst, shape)
    check_gradient(comm, src, dst, shape)


def check_extremum(comm, op, dst, shape):
    """Maximum and minimum: NumPy's value, and the gradient at the first rank that holds it."""
    parts = [whole_array(shape, np.float64, seed=coord) for coord in range(comm.size)]
    x = Tensor(parts[comm.rank], requires_grad=True)
    whole = getattr(np, op)(np.stack(parts), axis=0)
    upstream = whole_array(shape, np.float64, seed=9)
    y = redistribute(x, Partial(op), dst, comm, shape)
    y.backward(pieces(upstream, dual(dst), comm.size)[comm.rank])
    owner = getattr(np, f"arg{op}")(np.stack(parts), axis=0) if whole.size else np.zeros(shape)
    np.testing.assert_array_equal(y.data, pieces(whole, dst, comm.size)[comm.rank])
    np.testing.assert_array_equal(x.grad, np.where(owner == comm.rank, upstream, 0))


def check_finish(comm, op, dst, shape, dtype):
    """A product, maximum or minimum can be finished."""
    combine = {"product": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    parts = [whole_array(shape, dtype, seed=coord) for coord in range(comm.size)]
    y = move(parts[comm.rank], Partial(op), dst, comm, shape)
    np.testing.assert_array_equal(y, pieces(functools.reduce(combine, parts), dst, comm.size)[comm.rank])
