"""Collectives with gradients against NumPy on what all ranks hold: bodies of tests that take a communicator.

Every rank can compute what every other one brings, so the expected values need no communication.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import hpcdist.dtensor.functional as F
from hpcdist.autograd import Tensor, backward, no_grad
from hpcdist.comm import DeviceMesh, DistError, ReduceOp, init_device_mesh, using_group
from hpcdist.dtensor import chunk_sizes

VERBS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send")
DTYPES = [np.float32, np.float64, np.complex64, np.float16, ml_dtypes.bfloat16]


@contextlib.contextmanager
def recorded(comm):
    """Yield a list that gets the name of every verb called on ``comm`` in the block, blocking or not."""
    calls, inside = [], []

    def called(verb, original, *args, **kwargs):
        if not inside:
            calls.append(verb)
        inside.append(verb)
        try:
            return original(*args, **kwargs)
        finally:
            inside.pop()

    names = [(form + verb, verb) for verb in VERBS for form in ("", "i")]
    for name, verb in names:
        setattr(comm, name, functools.partial(called, verb, getattr(comm, name)))
    try:
        yield calls
    finally:
        for name, _ in names:
            delattr(comm, name)


def drawn(shape, *seed, dtype=np.float64):
    """Small integers, so that sums are exact."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 10, shape)
    return np.asarray(values + 1j * rng.integers(-9, 10, shape) if np.dtype(dtype).kind == "c" else values).astype(
        dtype
    )


class Case(NamedTuple):
    """A collective, what each rank brings, and by NumPy what each gets and which gradients it finds.

    ``shapes(size, rank)`` of the tensors a rank brings; ``outputs(xs, rank)`` where ``xs[r]`` are those of rank r;
    ``gradients(gs, rank)`` where ``gs[r]`` are the gradients of what rank r got.
    """

    call: Callable
    shapes: Callable
    outputs: Callable
    gradients: Callable
    forward: list[str]
    backward: list[str]


def one(shape):
    return lambda size, rank: [shape]


def total(xs, index=0):
    return sum(x[index] for x in xs)


def cut(whole, sizes, dim, rank):
    return np.split(whole, np.cumsum(sizes)[:-1], axis=dim)[rank]


def ragged(size):
    """One shape a rank, none like another; one is empty."""
    return [(rank, 2) if rank % 2 else (3, rank) for rank in range(size)]


def uneven(size):
    """Extents of five elements, all on the last rank but one element and the rest on the first."""
    return [5] if size == 1 else [1, *[0] * (size - 2), 4]


def last(xs):
    return len(xs) - 1


def turned(comm):
    return [(rank + 1) % comm.size for rank in range(comm.size)]


def splits(size, rank):
    """How many rows rank ``rank`` sends to each."""
    return [(rank + 2 * other) % 3 for other in range(size)]


def received(size, rank):
    return [splits(size, other)[rank] for other in range(size)]


def zeros_but(rank, root, arrays):
    return list(arrays) if rank == root else [np.zeros_like(a) for a in arrays]


CASES = {
    "all_reduce": Case(
        lambda comm, x: F.all_reduce(x, group=comm),
        one((2, 3)),
        lambda xs, rank: [total(xs)],
        lambda gs, rank: [total(gs)],
        ["all_reduce"],
        ["all_reduce"],
    ),
    "all_reduce_avg": Case(
        lambda comm, x: F.all_reduce(x, "avg", comm),
        one((2, 3)),
        lambda xs, rank: [total(xs) / len(xs)],
        lambda gs, rank: [total(gs) / len(gs)],
        ["all_reduce"],
        ["all_reduce"],
    ),
    "all_reduce_premul": Case(
        lambda comm, x: F.all_reduce(x, ReduceOp.PREMUL_SUM(0.5), comm),
        one((2, 3)),
        lambda xs, rank: [total(xs) / 2],
        lambda gs, rank: [total(gs) / 2],
        ["all_reduce"],
        ["all_reduce"],
    ),
    "all_gather": Case(
        lambda comm, x: F.all_gather(x, comm),
        one((2, 3)),
        lambda xs, rank: [x[0] for x in xs],
        lambda gs, rank: [total(gs, rank)],
        ["all_gather"],
        ["reduce_scatter"],
    ),
    "all_gather_numbers": Case(
        lambda comm, x: F.all_gather(x, comm),
        one(()),
        lambda xs, rank: [x[0] for x in xs],
        lambda gs, rank: [total(gs, rank)],
        ["all_gather"],
        ["reduce_scatter"],
    ),
    "all_gather_ragged": Case(
        lambda comm, x: F.all_gather(x, comm, shapes=ragged(comm.size)),
        lambda size, rank: [ragged(size)[rank]],
        lambda xs, rank: [x[0] for x in xs],
        lambda gs, rank: [total(gs, rank)],
        ["all_gather"],
        ["reduce_scatter"],
    ),
    "all_gather_tensor": Case(
        lambda comm, x: F.all_gather_tensor(x, -1, comm),
        one((2, 3)),
        lambda xs, rank: [np.concatenate([x[0] for x in xs], 1)],
        lambda gs, rank: [total(gs)[:, 3 * rank : 3 * rank + 3]],
        ["all_gather"],
        ["reduce_scatter"],
    ),
    "all_gather_tensor_uneven": Case(
        lambda comm, x: F.all_gather_tensor_autograd(x, 1, comm, sizes=uneven(comm.size)),
        lambda size, rank: [(2, uneven(size)[rank])],
        lambda xs, rank: [np.concatenate([x[0] for x in xs], 1)],
        lambda gs, rank: [cut(total(gs), uneven(len(gs)), 1, rank)],
        ["all_gather"],
        ["reduce_scatter"],
    ),
    "reduce_scatter": Case(
        lambda comm, *xs: F.reduce_scatter(np.empty((comm.rank, 2)), xs, group=comm),
        lambda size, rank: [(other, 2) for other in range(size)],
        lambda xs, rank: [total(xs, rank)],
        lambda gs, rank: [g[0] for g in gs],
        ["reduce_scatter"],
        ["all_gather"],
    ),
    "reduce_scatter_ragged": Case(
        lambda comm, *xs: F.reduce_scatter(None, xs, ReduceOp.AVG, comm),
        lambda size, rank: ragged(size),
        lambda xs, rank: [total(xs, rank) / len(xs)],
        lambda gs, rank: [g[0] / len(gs) for g in gs],
        ["reduce_scatter"],
        ["all_gather"],
    ),
    "reduce_scatter_tensor": Case(
        lambda comm, x: F.reduce_scatter_tensor(x, "sum", 1, comm),
        one((2, 5)),
        lambda xs, rank: [cut(total(xs), chunk_sizes(5, len(xs)), 1, rank)],
        lambda gs, rank: [np.concatenate([g[0] for g in gs], 1)],
        ["reduce_scatter"],
        ["all_gather"],
    ),
    "reduce_scatter_tensor_uneven": Case(
        lambda comm, x: F.reduce_scatter_tensor_autograd(x, "avg", -1, comm, sizes=uneven(comm.size)),
        one((2, 5)),
        lambda xs, rank: [cut(total(xs), uneven(len(xs)), 1, rank) / len(xs)],
        lambda gs, rank: [np.concatenate([g[0] for g in gs], 1) / len(gs)],
        ["reduce_scatter"],
        ["all_gather"],
    ),
    "all_to_all": Case(
        lambda comm, *xs: F.all_to_all([np.empty((other, comm.rank)) for other in range(comm.size)], xs, comm),
        lambda size, rank: [(rank, other) for other in range(size)],
        lambda xs, rank: [x[rank] for x in xs],
        lambda gs, rank: [g[rank] for g in gs],
        ["all_to_all"],
        ["all_to_all"],
    ),
    "all_to_all_alike": Case(
        lambda comm, *xs: F.all_to_all(None, xs, comm),
        lambda size, rank: [(2, 3)] * size,
        lambda xs, rank: [x[rank] for x in xs],
        lambda gs, rank: [g[rank] for g in gs],
        ["all_to_all"],
        ["all_to_all"],
    ),
    "all_to_all_single": Case(
        lambda comm, x: F.all_to_all_single(None, x, group=comm),
        lambda size, rank: [(2 * size, 3)],
        lambda xs, rank: [np.concatenate([x[0][2 * rank : 2 * rank + 2] for x in xs])],
        lambda gs, rank: [np.concatenate([g[0][2 * rank : 2 * rank + 2] for g in gs])],
        ["all_to_all"],
        ["all_to_all"],
    ),
    "all_to_all_single_splits": Case(
        lambda comm, x: F.all_to_all_single_autograd(
            x, received(comm.size, comm.rank), splits(comm.size, comm.rank), comm
        ),
        lambda size, rank: [(sum(splits(size, rank)), 3)],
        lambda xs, rank: [np.concatenate([cut(x[0], splits(len(xs), other), 0, rank) for other, x in enumerate(xs)])],
        lambda gs, rank: [np.concatenate([cut(g[0], received(len(gs), other), 0, rank) for other, g in enumerate(gs)])],
        ["all_to_all"],
        ["all_to_all"],
    ),
    "permute_tensor": Case(
        lambda comm, x: F.permute_tensor(x, turned(comm), comm),
        one((2, 3)),
        lambda xs, rank: [xs[rank - 1][0]],
        lambda gs, rank: [gs[(rank + 1) % len(gs)][0]],
        ["all_to_all"],
        ["all_to_all"],
    ),
    "broadcast": Case(
        lambda comm, x: F.broadcast(x, group=comm, group_src=comm.size - 1),
        one((2, 3)),
        lambda xs, rank: [xs[-1][0]],
        lambda gs, rank: zeros_but(rank, last(gs), [total(gs)]),
        ["broadcast"],
        ["reduce"],
    ),
    "reduce": Case(
        lambda comm, x: F.reduce(x, group=comm, group_dst=comm.size - 1),
        one((2, 3)),
        lambda xs, rank: zeros_but(rank, last(xs), [total(xs)]),
        lambda gs, rank: [gs[-1][0]],
        ["reduce"],
        ["broadcast"],
    ),
    "reduce_avg": Case(
        lambda comm, x: F.reduce(x, comm.members[0], "avg", comm),
        one((2, 3)),
        lambda xs, rank: zeros_but(rank, 0, [total(xs) / len(xs)]),
        lambda gs, rank: [gs[0][0] / len(gs)],
        ["reduce"],
        ["broadcast"],
    ),
    "gather": Case(
        lambda comm, x: F.gather(x, comm.members[0], comm),
        one((2, 3)),
        lambda xs, rank: zeros_but(rank, 0, [x[0] for x in xs]),
        lambda gs, rank: [gs[0][rank]],
        ["gather"],
        ["scatter"],
    ),
    "gather_ragged": Case(
        lambda comm, x: F.gather(x, group=comm, group_dst=comm.size - 1, shapes=ragged(comm.size)),
        lambda size, rank: [ragged(size)[rank]],
        lambda xs, rank: zeros_but(rank, last(xs), [x[0] for x in xs]),
        lambda gs, rank: [gs[-1][rank]],
        ["gather"],
        ["scatter"],
    ),
    "scatter": Case(
        lambda comm, *xs: F.scatter(xs, group=comm, group_src=comm.size - 1),
        lambda size, rank: ragged(size),
        lambda xs, rank: [xs[-1][rank]],
        lambda gs, rank: zeros_but(rank, last(gs), [g[0] for g in gs]),
        ["scatter"],
        ["gather"],
    ),
}


def brought(case, size, dtype=np.float64):
    """Return what every rank brings."""
    return [
        [drawn(shape, 1, rank, i, dtype=dtype) for i, shape in enumerate(case.shapes(size, rank))]
        for rank in range(size)
    ]


def upstream(case, xs):
    """Return the gradients of what every rank gets."""
    return [[drawn(y.shape, 2, rank, i) for i, y in enumerate(case.outputs(xs, rank))] for rank in range(len(xs))]


def listed(ys):
    return list(ys) if isinstance(ys, tuple) else [ys]


def check_values_gradients_and_collectives(comm, name):
    """NumPy's values and gradients, by one collective each way; arguments stay as they are."""
    case = CASES[name]
    xs = brought(case, comm.size)
    gs = upstream(case, xs)
    leaves = [Tensor(x.copy(), requires_grad=True) for x in xs[comm.rank]]
    with recorded(comm) as there:
        ys = listed(case.call(comm, *leaves))
    with recorded(comm) as back:
        backward(ys, gs[comm.rank])
    for calls, expected in ((there, case.forward), (back, case.backward)):
        assert calls == expected or (comm.size == 1 and not calls)
    for y, expected in zip(ys, case.outputs(xs, comm.rank), strict=True):
        np.testing.assert_allclose(y.data, expected, rtol=1e-15)
        assert y.shape == expected.shape
    for leaf, x, expected in zip(leaves, xs[comm.rank], case.gradients(gs, comm.rank), strict=True):
        np.testing.assert_array_equal(leaf.data, x)
        np.testing.assert_allclose(leaf.grad, expected, rtol=1e-15)
        assert leaf.grad.shape == x.shape


def check_transpose(comm, name):
    """Over all ranks <y, g> is <x, gradient>."""
    case = CASES[name]
    xs = brought(case, comm.size)
    gs = upstream(case, xs)[comm.rank]
    leaves = [Tensor(x, requires_grad=True) for x in xs[comm.rank]]
    ys = listed(case.call(comm, *leaves))
    backward(ys, gs)
    forwards = sum(float(np.vdot(y.data, g)) for y, g in zip(ys, gs, strict=True))
    backwards = sum(float(np.vdot(leaf.data, leaf.grad)) for leaf in leaves)
    sides = np.array(comm.all_gather_object((forwards, backwards))).sum(0)
    np.testing.assert_allclose(sides[0], sides[1], rtol=1e-14, atol=1e-9)
    assert comm.size == 1 or sides.any() or "numbers" in name


def check_dtypes(comm, name):
    """Values and gradients keep the dtype; tensors that need no gradients, and integers, have none."""
    case = CASES[name]
    for dtype in DTYPES:
        xs = brought(case, comm.size, dtype)
        leaves = [Tensor(x, requires_grad=True) for x in xs[comm.rank]]
        ys = listed(case.call(comm, *leaves))
        backward(ys, [np.ones(y.shape, dtype) for y in ys])
        for y, expected in zip(ys, case.outputs(xs, comm.rank), strict=True):
            assert y.dtype == dtype
            np.testing.assert_allclose(y.data.astype(np.complex128), expected.astype(np.complex128), rtol=0.02)
        assert [leaf.grad.dtype for leaf in leaves] == [dtype] * len(leaves)
    with no_grad():
        assert not any(y.requires_grad for y in listed(case.call(comm, *leaves)))
    if "avg" in name or name in ("all_reduce_premul", "reduce_scatter_ragged", "reduce_scatter_tensor_uneven"):
        return
    xs = brought(case, comm.size, np.int32)
    ys = listed(case.call(comm, *xs[comm.rank]))
    for y, expected in zip(ys, case.outputs(xs, comm.rank), strict=True):
        assert (y.dtype, y.requires_grad) == (np.int32, False)
        np.testing.assert_array_equal(y.data, expected)


EXTREMA = {
    "all_reduce": lambda comm, x, op: F.all_reduce(x, op, comm),
    "reduce": lambda comm, x, op: F.reduce(x, op=op, group=comm, group_dst=comm.size - 1),
    "reduce_scatter_tensor": lambda comm, x, op: F.reduce_scatter_tensor(x, op, 1, comm),
    "reduce_scatter_tensor_uneven": lambda comm, x, op: F.reduce_scatter_tensor(
        x, op, 1, comm, sizes=uneven(comm.size)
    ),
}


def held(name, whole, rank, size):
    """Return the part of a whole that a rank gets; zeros where it gets nothing."""
    if name == "reduce":
        return whole if rank == size - 1 else np.zeros_like(whole)
    if name.startswith("reduce_scatter"):
        return cut(whole, uneven(size) if name.endswith("uneven") else chunk_sizes(5, size), 1, rank)
    return whole


def check_extrema(comm, name):
    """Maxima and minima, also infinite ones, send their gradient to the first rank that holds the value."""
    size, rank = comm.size, comm.rank
    for op in ("max", "min"):
        xs = [drawn((2, 5), 3, r) for r in range(size)]
        xs[-1][0, :2] = np.inf
        gs = [held(name, drawn((2, 5), 4, r), r, size) for r in range(size)]
        x = Tensor(xs[rank], requires_grad=True)
        y = EXTREMA[name](comm, x, op)
        backward(y, gs[rank])
        whole = getattr(np, op)(xs, axis=0)
        np.testing.assert_array_equal(y.data, held(name, whole, rank, size))
        back = np.concatenate(gs, 1) if name.startswith("reduce_scatter") else gs[-1] if name == "reduce" else sum(gs)
        owner = getattr(np, f"arg{op}")(xs, axis=0)
        np.testing.assert_array_equal(x.grad, np.where(owner == rank, back, 0))
        with recorded(comm) as calls:
            EXTREMA[name](comm, x.detach(), op)
        assert calls == [name.removesuffix("_uneven").removesuffix("_tensor")] or (comm.size == 1 and not calls)


def check_products(comm, name):
    """A product is computed where no gradients are wanted."""
    xs = [drawn((2, 5), 5, r) for r in range(comm.size)]
    x = Tensor(xs[comm.rank], requires_grad=True)
    with pytest.raises(ValueError, match="product over ranks has no gradient"):
        EXTREMA[name](comm, x, "product")
    y = EXTREMA[name](comm, x.detach(), ReduceOp.PRODUCT)
    np.testing.assert_array_equal(y.data, held(name, np.prod(xs, axis=0), comm.rank, comm.size))


def check_bits(comm, name):
    xs = [drawn((2, 5), 6, r, dtype=np.int64) for r in range(comm.size)]
    y = EXTREMA[name](comm, xs[comm.rank], "bor")
    np.testing.assert_array_equal(y.data, held(name, np.bitwise_or.reduce(xs), comm.rank, comm.size))


def check_outputs_that_are_not_used(comm):
    """What nobody used has the gradient zero: of an exchange, a gather and a joined list."""
    xs = [Tensor(drawn((2,), 7, i), requires_grad=True) for i in range(comm.size)]
    F.all_to_all(None, xs, comm)[0].sum().backward()
    assert [x.grad.tolist() for x in xs] == [[float(comm.rank == 0)] * 2] * comm.size
    for gathered in (F.gather, F.all_gather):
        x = Tensor(drawn((2,), 8), requires_grad=True)
        gathered(x, group=comm)[comm.size - 1].sum().backward()
        count = 1 if gathered is F.gather else comm.size
        assert x.grad.tolist() == [count * float(comm.rank == comm.size - 1)] * 2


def check_some_inputs_without_gradients(comm):
    """An exchange where each rank wants gradients of what it sends to the first only."""
    xs = [Tensor(drawn((2,), 9, i), requires_grad=i == 0) for i in range(comm.size)]
    ys = F.all_to_all(None, xs, comm)
    backward(ys, [np.full(2, float(i)) for i in range(comm.size)])
    assert xs[0].grad.tolist() == [float(comm.rank)] * 2
    assert [x.grad for x in xs[1:]] == [None] * (comm.size - 1)


def check_groups(comm):
    """A mesh of one axis, a mesh and an axis, and the default group; sources by either number."""
    mesh = init_device_mesh((comm.size, 1), ("dp", "tp"), comm)
    x = Tensor(np.array([comm.rank + 1.0]))
    expected = [comm.size * (comm.size + 1) / 2]
    for group in (mesh["dp"], (mesh, "dp"), (mesh, 0), comm):
        assert F.all_reduce(x, group=group).data.tolist() == expected
    assert F.all_reduce(x, group=(mesh, "tp")).data.tolist() == x.data.tolist()
    with using_group(comm):
        assert F.all_reduce(x).data.tolist() == expected
    for group in (mesh, (mesh,), (comm, 0), "dp", [0]):
        with pytest.raises((TypeError, ValueError), match=r"group|axis"):
            F.all_reduce(x, group=group)


def check_case_b09(comm):
    """A mesh of ranks 0 and 2: sum 4, mean 2, gradients among them; others are refused, and the world goes on."""
    if comm.size < 3:
        return
    mesh = DeviceMesh([0, 2], "dp", comm)
    x = Tensor(np.array([comm.rank + 1.0]), requires_grad=True)
    if comm.rank in (0, 2):
        assert F.all_reduce(x, group=mesh).item() == 4
        F.all_reduce(x, "avg", mesh).backward(np.array([comm.rank + 1.0]))
        assert x.grad.tolist() == [2]
        members = mesh.get_group().members
        for root in ({"src": members[1]}, {"group_src": 1}):
            assert F.broadcast(x, group=mesh, **root).item() == 3
        with pytest.raises(ValueError, match="broadcast: src"):
            F.broadcast(x, members[1] + 100, mesh)
    else:
        with pytest.raises(DistError, match="this rank is not in the mesh"):
            F.all_reduce(x, group=mesh)
    assert F.all_reduce(x, group=comm).item() == comm.size * (comm.size + 1) / 2


def check_refusals(comm):
    """Wrong arguments are refused before anything is sent, and the group goes on."""
    n, x = comm.size, Tensor(np.ones((2, 3)))
    for error, match, call in [
        (TypeError, "a Tensor or an array", lambda: F.all_reduce(1.0, group=comm)),
        (ValueError, "all_reduce: op", lambda: F.all_reduce(x, "median", comm)),
        (ValueError, "premul_sum", lambda: F.all_reduce(np.ones(2, int), ReduceOp.PREMUL_SUM(2), comm)),
        (ValueError, "shapes", lambda: F.all_gather(x, comm, shapes=[(2, 3)] * (n + 1))),
        (ValueError, "all_gather: tensor, by shapes", lambda: F.all_gather(x, comm, shapes=[(3, 2)] * n)),
        (ValueError, "gather: tensor, by shapes", lambda: F.gather(x, group=comm, group_dst=0, shapes=[(2, 4)] * n)),
        (ValueError, "all_gather_tensor: dim", lambda: F.all_gather_tensor(x, 2, comm)),
        (ValueError, "sizes", lambda: F.all_gather_tensor(x, 0, comm, sizes=[2] * (n + 1))),
        (ValueError, "reduce_scatter_tensor: dim", lambda: F.reduce_scatter_tensor(x, "sum", -3, comm)),
        (ValueError, "sizes", lambda: F.reduce_scatter_tensor(x, "sum", 1, comm, sizes=[4] * n)),
        (ValueError, "shape of output", lambda: F.reduce_scatter(np.ones(2), [x] * n, group=comm)),
        (ValueError, "input_list", lambda: F.reduce_scatter(None, [x] * (n + 1), group=comm)),
        (TypeError, "a list of tensors", lambda: F.reduce_scatter(None, x, group=comm)),
        (ValueError, "output_tensor_list", lambda: F.all_to_all([x] * (n + 1), [x] * n, comm)),
        (TypeError, "all_to_all_single_autograd", lambda: F.all_to_all_single(x, None, None, None, comm)),
        (TypeError, "all_to_all_single_autograd", lambda: F.all_to_all_single(x, [2], [2], comm)),
        (ValueError, "shape of output", lambda: F.all_to_all_single(np.ones((n, 2)), np.ones((n, 3)), group=comm)),
        (ValueError, "no dimension", lambda: F.all_to_all_single(None, np.ones(()), group=comm)),
        (ValueError, "input_split_sizes", lambda: F.all_to_all_single(None, x, None, [1] * (n + 1), comm)),
        (ValueError, "their sum", lambda: F.all_to_all_single(None, x, None, [3] * n, comm)),
        (ValueError, "their sum", lambda: F.all_to_all_single(x, np.ones((n, 3)), [3] * n, None, comm)),
        (ValueError, "each of 0 to", lambda: F.permute_tensor(x, [0] * (n + 1), comm)),
        (ValueError, "broadcast: src", lambda: F.broadcast(x, group=comm)),
        (ValueError, "broadcast: group_src", lambda: F.broadcast(x, group=comm, group_src=n)),
        (ValueError, "reduce: dst", lambda: F.reduce(x, group=comm)),
        (ValueError, "gather: dst and group_dst", lambda: F.gather(x, 0, comm, group_dst=0)),
    ]:
        with pytest.raises(error, match=match), recorded(comm) as calls, using_group(comm):
            call()
        assert [verb for verb in calls if verb not in ("all_gather", "reduce_scatter")] == []
    if n > 1:
        with pytest.raises(TypeError, match="one for all"):
            F.scatter([x, np.ones(2, int), *[x] * (n - 2)], group=comm)
        with pytest.raises(ValueError, match=f"does not divide by {n} ranks"):
            F.all_to_all_single(None, np.ones((n + 1, 2)), group=comm)
    assert comm.all_reduce(np.array([1])).tolist() == [n]


CHECKS = [
    check_outputs_that_are_not_used,
    check_some_inputs_without_gradients,
    check_groups,
    check_case_b09,
    check_refusals,
]
