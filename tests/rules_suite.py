"""Rules of operations that signatures do not describe: bodies of tests that take a communicator.

The oracle is the same function of plain tensors: values, gradients, layouts, and what is communicated.
"""

import random
import re

import numpy as np
import pytest
from dtensor_suite import cut_up, everyone, placed, put_together, same_error
from move_suite import AVG, INV, S0, S1, P, R, whole_array

import hpcdist as hd
from hpcdist.autograd import OPS, Tensor, apply
from hpcdist.comm import init_device_mesh
from hpcdist.dtensor import Layout, Shard, dual
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.nn import functional as F

S2 = Shard(2)
NOTHING = {}


def mesh_of(comm, *shape):
    """Return a mesh of all ranks; without a shape: one axis."""
    shape = shape or (comm.size,)
    return init_device_mesh(shape, ("dp", "tp")[-len(shape) :], comm)


def counts(mode):
    """Return what was communicated, except for the objects by which ranks that check compare numbers."""
    return {verb: count for verb, count in mode.get_comm_counts().items() if verb != "object"}


def several(comm, verb, size=None):
    """Return the counts of one collective: ranks that are alone make none."""
    return {verb: 1} if (size or comm.size) > 1 else NOTHING


def is_float(x):
    return x.dtype.kind in "fc"


# ---------------------------------------------------------------- the whole and the parts
def check(mesh, fn, arrays, placements, into=None, *, forward=NOTHING, backward=NOTHING, orders=None, exact=True):
    """Check ``fn`` of arrays that are placed so against the same of whole ones.

    ``into`` are the placements of the (first) result; ``forward`` and ``backward`` what is communicated. Integers are
    whole on every rank, or cut.
    """
    orders = orders or [None] * len(arrays)
    parts = [placed(a, mesh, p, o, is_float(a)) for a, p, o in zip(arrays, placements, orders, strict=True)]
    wholes = [Tensor(a.copy(), is_float(a)) for a in arrays]
    expected = fn(*wholes)
    with CommDebugMode() as mode:
        found = fn(*parts)
    forward, backward = (told if mesh.size() > 1 else NOTHING for told in (forward, backward))
    assert counts(mode) == forward, (counts(mode), forward)
    pairs = list(zip(found, expected, strict=True)) if isinstance(found, tuple) else [(found, expected)]
    if into is not None:
        assert pairs[0][0].placements == tuple(into), (pairs[0][0].placements, into)
    same = np.testing.assert_array_equal if exact else close
    for x, whole in pairs:
        assert x.dtype == whole.dtype
        same(joined(x), whole.data)
    backwards(mesh, pairs, backward)
    for x, whole in zip(parts, wholes, strict=True):
        if whole.grad is not None:
            same(gradient(x), whole.grad)


def backwards(mesh, pairs, expected):
    """Go backwards from each result; check what is communicated in the last of them."""
    for seed, (x, whole) in enumerate(pairs):
        if not whole.requires_grad:
            continue
        g = whole_array(whole.shape, whole.dtype, 7 + seed)
        whole.backward(g, retain_graph=True)
        with CommDebugMode() as mode:
            x.backward(g, retain_graph=True)
        assert counts(mode) == expected, (counts(mode), expected)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def joined(x):
    """Return the whole of what ranks hold; copies are equal, and of the shape the layout says."""
    assert x.data.shape == x.layout.local_shape
    return put_together(everyone(x.device_mesh, x.data), x.device_mesh.shape, x.placements, x.layout.order)


def gradient(x):
    """Return the whole of a gradient, of which ranks hold what the dual placements say."""
    mesh, layout = x.device_mesh, x.layout
    return put_together(everyone(mesh, x.grad), mesh.shape, [dual(p) for p in x.placements], layout.order)


def refused(mesh, fn, arrays, placements, match, kind=ValueError):
    """Check that every rank raises the same error."""
    parts = [placed(a, mesh, p, None, is_float(a)) for a, p in zip(arrays, placements, strict=True)]
    same_error(mesh, kind, match, lambda: fn(*parts))


# ---------------------------------------------------------------- reshape
RESHAPES = [
    ((6, 256), (1536,)), ((12, 8), (16, 6)), ((6, 4), (-1,)), ((4, 3, 8), (12, 8)), ((8, 4), (8, 2, 2)),
    ((2, 8), (16,)), ((12,), (3, 4)), ((3, 4), (12,)), ((2, 3, 12), (2, 3, 3, 4)), ((2, 3, 3, 4), (2, 3, 12)),
    ((5,), (1, 5)), ((5,), (5, 1)), ((1, 5), (5,)), ((5, 1), (5,)), ((1, 4), (4, 1, 1)), ((5, 1, 3), (5, 3)),
    ((5, 1, 3), (1, 15)), ((1,), (1, 1)), ((1, 1), ()), ((), (1,)), ((0, 3), (0, 1, 3)), ((0, 4), (2, 0)),
    ((4, 0), (0,)), ((2, 0, 3), (2, 0)),
    ((2, 0, 3), (2, 0, 5)), ((2, 0, 3), (2, 0, 3)), ((2, 0, 3), (2, 3, 0)),
    ((6, 1), (2, 3)), ((24,), (2, 3, 4)), ((2, 3, 4), (6, 4)), ((2, 3, 4), (2, 12)), ((7, 2), (7, 2)),
]  # fmt: skip


def shards(shape):
    """Return Shards of an array: of each dimension, in units, and by sections."""
    for dim, n in enumerate(shape):
        yield Shard(dim)
        yield from (Shard(dim, unit) for unit in (2, 3, 4) if n % unit == 0)
        if n % 4 == 0:
            yield Shard(dim, n // 4, (n // 2, n // 2)) if n else Shard(dim)


def places(shape, mesh_shape, placements, order):
    """Return which elements, by number, each rank holds, in their order."""
    whole = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return {place: x.reshape(-1) for place, x in cut_up(whole, mesh_shape, placements, order).items()}


def some_cut(shape, mesh_shape, held):
    """Return whether a cut of one dimension into units makes ranks hold what they shall."""
    options = [Shard(d, unit) for d, n in enumerate(shape) for unit in range(1, n + 1) if n % unit == 0]
    return any(
        all(np.array_equal(there[place], held[place]) for place in held)
        for p in options
        for there in [places(shape, mesh_shape, [p], (0,))]
    )


def check_reshape(comm, old, new):
    """Either the right elements, forwards and backwards, without a collective, or the same error on every rank.

    What one cut in units can say is not refused.
    """
    mesh = mesh_of(comm)
    whole = whole_array(old, np.float64)
    shape = whole.reshape(new).shape
    for p in [*shards(old), P, AVG, R, INV]:
        message = ""
        try:
            check(mesh, lambda x: x.reshape(new), [whole], [[p]])
        except ValueError as error:
            message = str(error)
        if message:
            assert re.search(rf"reshape.*dim {p.dim} is cut on tp \({comm.size} ranks\)", message)
            assert not some_cut(shape, mesh.shape, places(old, mesh.shape, [p], (0,))), f"{old} {p} to {new} is refused"
            refused(mesh, lambda x: x.reshape(new), [whole], [[p]], "reshape")


def check_views_of_b14(comm):
    """Case B14: a view is bitwise right, or an error names dim and mesh size on every rank."""
    mesh, n = mesh_of(comm), comm.size
    cases = [
        ((12, 8), (16, 6), S1, None), ((6, 256), (-1,), S0, Shard(0, 256)), ((4, 3, 8), (12, 8), S0, Shard(0, 3)),
        ((8, 4), (8, 2, 2), S1, S1), ((2, 8), (16,), S0, Shard(0, 8)),
    ]  # fmt: skip
    for old, new, p, into in cases:
        whole = np.arange(np.prod(old), dtype=float).reshape(old)
        if n == 1 or (into is not None and (old != (8, 4) or n < 4)):
            check(mesh, lambda x, new=new: x.view(new), [whole], [[p]], into and placed_alike(mesh, whole, new, into))
        else:
            words = rf"reshape.*dim {p.dim} is cut on tp \({n} ranks\)"
            refused(mesh, lambda x, new=new: x.view(new), [whole], [[p]], words)
        check(mesh, lambda x: x.T, [whole], [[p]])
        check(mesh, lambda x: x.permute(*range(x.ndim)[1:], 0), [whole], [[p]])


def placed_alike(mesh, whole, shape, p):
    """Return the placements that are the simplest form of ``p`` for an array of ``shape``."""
    return placed(whole.reshape(shape), mesh, [p]).placements


def check_heads_of_features(comm, num_heads):
    """(batch, time, heads * width) in units of a head, and (batch, time, heads, width) cut by heads, are views."""
    mesh, width = mesh_of(comm), 4
    flat = whole_array((2, 3, num_heads * width), np.float64)
    split, by_head = (2, 3, num_heads, width), Shard(2, width)
    one = num_heads == comm.size == 1
    check(mesh, lambda x: x.reshape(split), [flat], [[by_head]], [Shard(3) if one else S2])
    check(mesh, lambda x: x.flatten(2), [flat.reshape(split)], [[S2]], placed(flat, mesh, [by_head]).placements)
    fused = whole_array((2, 6 * num_heads * width), np.float64)
    sections = (4 * num_heads * width, 2 * num_heads * width)
    check(mesh, lambda x: x.reshape(2, -1, width), [fused], [[Shard(1, width, sections)]])


def check_nested_views(comm):
    """Two axes cut one dimension, or one each; every other dimension is left alone."""
    if comm.size % 2:
        return
    mesh = mesh_of(comm, comm.size // 2, 2)
    x = whole_array((8, 6), np.float64)
    for order in ((0, 1), (1, 0)):
        check(mesh, lambda x: x.reshape(-1), [x], [[S0, S0]], orders=[order])
        check(mesh, lambda x: x.unsqueeze(0), [x], [[S0, S0]], [S1, S1], orders=[order])
        check(mesh, lambda x: x.reshape(4, 2, 6), [x], [[S0, S0]], [S0, S0], orders=[order])
    check(mesh, lambda x: x.reshape(8, 2, 3), [x], [[S0, Shard(1, 3)]], [S0, S1])
    check(mesh, lambda x: x.reshape(2, 4, 6), [x], [[P, S1]], [P, S2])
    refused(mesh, lambda x: x.reshape(-1), [x], [[S0, S1]], r"reshape.*dim 0 is cut on dp")


def random_shape(rng, total):
    """Return extents with the product ``total``, some of them one."""
    shape = []
    while total > 1:
        shape.append(rng.choice([d for d in range(1, total + 1) if total % d == 0]))
        total //= shape[-1]
    return tuple(shape)


def check_random_views(comm, seed):
    """Views of arrays cut by one axis or two, in either order, in units and sections: right, or refused."""
    rng = random.Random(seed)
    for _ in range(12):
        mesh = mesh_of(comm, *rng.choice([(comm.size,), (1, comm.size), (2, 2) if comm.size == 4 else (comm.size, 1)]))
        total = rng.choice([4, 6, 8, 12, 24, 30, 36])
        old, new = random_shape(rng, total), random_shape(rng, total)
        cuts = [*shards(old), *shards(old), P, R, INV]
        placements = [rng.choice(cuts) for _ in range(mesh.ndim)]
        order = tuple(rng.sample(range(mesh.ndim), mesh.ndim))
        x, message = whole_array(old, np.float64), ""
        try:
            Layout.of(mesh, placements, old, order)
        except ValueError:  # units do not fit what another axis leaves
            continue
        try:
            check(mesh, lambda x, new=new: x.reshape(new), [x], [placements], orders=[order])
        except ValueError as error:
            message = str(error)
        assert set(comm.all_gather_object(message)) == {message}
        assert message.startswith("reshape: what ranks hold") or not message, message


def check_fused_views(comm):
    """What lies side by side, such as q, k and v, is a dimension before one that is cut, or its sections."""
    mesh = mesh_of(comm)
    for heads in (2, 3, 4):
        fused = whole_array((2, 3, 3 * heads * 4), np.float64)
        cut = Shard(2, 4, (4 * heads,) * 3)
        check(mesh, lambda x, n=heads: x.reshape(2, 3, 3, n, 4), [fused], [[cut]], [Shard(3 if comm.size > 1 else 2)])
        check(mesh, lambda x: x.flatten(2), [fused.reshape(2, 3, 3, heads, 4)], [[Shard(3)]])
    if comm.size > 1:
        refused(mesh, lambda x: x.reshape(-1), [np.zeros((65, 4))], [[S1]], "reshape")


# ---------------------------------------------------------------- stretching, indices
def check_broadcast(comm):
    mesh = mesh_of(comm)
    x = whole_array((5, 1), np.float64)
    for p, into in ((S0, S1), (P, P), (R, R), (INV, INV)):
        check(mesh, lambda x: hd.broadcast_to(x, (3, 5, 4)), [x], [[p]], [into])
        check(mesh, lambda x: x.expand(-1, 4), [x], [[p]], [p])
    if comm.size > 1:
        refused(mesh, lambda x: x.expand(-1, 4), [x], [[S1]], "broadcast_to")
    refused(mesh, lambda x: x.expand(4, 4), [x], [[S0]], "broadcast_to")


def check_getitem(comm):
    """Dimensions that an index leaves whole may be cut."""
    mesh = mesh_of(comm)
    x = whole_array((5, 4, 6), np.float64)
    picks = np.array([[0, 3, 3], [1, 0, 2]])
    for index, into in [
        (np.s_[:, 1], S0), (np.s_[..., -1], S0), (np.s_[:5, None, 1:3], S0), (np.s_[None, ..., ::2], S1),
        (np.s_[:, picks], S0), (np.s_[:, 1, :, None], S0), (np.s_[:, [0, 2], [1, 5]], S0),
        (np.s_[:, [0, 2], None, 1], S1),
        (np.s_[::1, x[0] > 0], S0), (np.s_[:, ::-1], S0), ((), S0), (np.s_[:, 2:2], S0),
    ]:  # fmt: skip
        check(mesh, lambda x, index=index: x[index], [x], [[S0]], [into])
        for p in (P, AVG, R, INV):
            check(mesh, lambda x, index=index: x[index], [x], [[p]], [p])
    check(mesh, lambda x: x[[1, 0, 1], :, 2], [x], [[S1]], [S1])
    check(mesh, lambda x: x[2, :, picks], [x], [[S1]], [S2])
    for index in (0, np.s_[1:], np.s_[::-1], [0, 1], np.s_[..., :2, None, :, :]):
        refused(mesh, lambda x, index=index: x[index], [x], [[S0]], r"getitem.*dim 0")
    refused(mesh, lambda x: x[5], [x], [[S1]], "getitem", IndexError)
    check(mesh, lambda x: x[:, 1], [x], [[S0]], [S0])
    refused(mesh, lambda x: x[:, True], [x], [[S0]], "bool", TypeError)
    refused(mesh, lambda x: x[True], [x], [[S1]], "bool", TypeError)


def check_index_tensors(comm):
    """An index that is distributed counts as a whole; slices of it are not taken for it."""
    mesh = mesh_of(comm)
    x, index = whole_array((5, 4), np.float64), np.array([3, 0, 1, 1])
    check(
        mesh,
        lambda x: x[:, placed(index, mesh, [INV])] if not isinstance(x, Tensor) else x[:, index],
        [x],
        [[S0]],
        [S0],
    )
    refused(mesh, lambda x: x[:, placed(index, mesh, [S0])], [x], [[S0]], "slices")


def check_put(comm):
    mesh = mesh_of(comm)
    x = whole_array((3, 5), np.float64)

    def put(x):
        return apply(OPS["put"], x, index=np.s_[1, :, [0, 2, 2]], shape=(2, 5, 3))

    check(mesh, put, [x], [[S1]], [S1])
    check(mesh, put, [x], [[P]], [P])
    refused(mesh, put, [x], [[S0]], r"put.*dim 0")


def check_pad_and_stack(comm):
    mesh = mesh_of(comm)
    x, y = whole_array((5, 4), np.float64), whole_array((5, 4), np.float64, 1)
    for mode in ("constant", "reflect", "replicate", "circular"):
        check(mesh, lambda x, mode=mode: hd.pad(x, (1, 2), mode), [x], [[S0]], [S0])
    refused(mesh, lambda x: hd.pad(x, (1, 2)), [x], [[S1]], "pad")
    for dim, into in ((0, S1), (1, S0), (-1, S0)):
        check(mesh, lambda x, y, dim=dim: hd.stack([x, y], dim), [x, y], [[S0], [S0]], [into])
        check(mesh, lambda x, y, dim=dim: hd.stack([x, y], dim), [x, y], [[S0], [R]], [into])
    check(mesh, lambda x, y: hd.stack([x, y]), [x, y], [[P], [P]], [P])


# ---------------------------------------------------------------- split, cat
def check_split(comm):
    """Sections of a cut are pieces: each is cut, without a collective."""
    mesh = mesh_of(comm)
    x = whole_array((3, 10), np.float64)
    check(mesh, lambda x: x.split((4, 6), 1), [x], [[Shard(1, sections=(4, 6))]], [S1])
    check(
        mesh,
        lambda x: x.split((4, 6), -1),
        [x],
        [[Shard(1, unit=2, sections=(4, 6))]],
        placed_alike_of(mesh, (3, 4), Shard(1, 2)),
    )
    check(mesh, lambda x: x.split((7, 3), 1), [x], [[Shard(1, sections=(4, 3, 3))]])
    check(mesh, lambda x: x.split((4, 0, 6), 1), [x], [[Shard(1, sections=(4, 6))]])
    check(mesh, lambda x: x.split((1, 2)), [x], [[S1]], [S1])
    check(mesh, lambda x: x.split((4, 6), 1), [x], [[P]], [P])
    if comm.size > 1:
        refused(mesh, lambda x: x.split((5, 5), 1), [x], [[S1]], r"split.*\n.*\n.*sections=\(5, 5\)")
        refused(mesh, lambda x: x.split((5, 5), 1), [x], [[Shard(1, sections=(4, 6))]], "split")
    refused(mesh, lambda x: x.split((5, 6), 1), [x], [[S0]], "split")


def placed_alike_of(mesh, shape, p):
    return placed(np.zeros(shape), mesh, [p]).placements


def check_cat(comm):
    """What is cut alike is joined into sections; splitting gives them back."""
    mesh = mesh_of(comm)
    x, y, z = (whole_array((3, n), np.float64, n) for n in (4, 6, 1))

    def cat(*xs):
        return hd.cat(xs, 1)

    check(mesh, cat, [x, y, z], [[S1]] * 3, placed_alike_of(mesh, (3, 11), Shard(1, sections=(4, 6, 1))))
    check(mesh, cat, [x, y], [[S1], [R]], placed_alike_of(mesh, (3, 10), Shard(1, sections=(4, 6))))
    check(mesh, cat, [x, y], [[S1], [P]], forward=several(comm, "reduce_scatter"), backward=several(comm, "all_gather"))
    check(mesh, cat, [x, y], [[Shard(1, 2)], [Shard(1, 3)]])
    check(mesh, cat, [x, y], [[S0], [S0]], [S0])
    check(mesh, cat, [x, y], [[P], [P]], [P])
    check(mesh, lambda x, y: cat(x, y).split((4, 6), 1), [x, y], [[S1], [S1]], [S1])
    if comm.size > 1:
        refused(mesh, cat, [x, y], [[S1], [S0]], "cat")


def check_split_and_cat_on_two_axes(comm):
    if comm.size % 2:
        return
    mesh = mesh_of(comm, comm.size // 2, 2)
    x, y = whole_array((4, 4), np.float64), whole_array((4, 6), np.float64, 1)
    check(mesh, lambda x, y: hd.cat([x, y], 1), [x, y], [[S0, S1], [S0, S1]])
    check(mesh, lambda x, y: hd.cat([x, y], 1), [x, y], [[S0, S1], [R, S1]])
    check(mesh, lambda x: x.split((2, 2), 1), [x], [[S0, Shard(1, sections=(2, 2))]])
    check(mesh, lambda x: x.split((2, 2), 1), [x], [[P, Shard(1, sections=(2, 2))]])


def check_cast(comm):
    """A sum is kept between floating dtypes, and finished before a cast that rounds."""
    mesh = mesh_of(comm)
    x = whole_array((5, 3), np.float64)
    for p in (P, S0, R, INV):
        check(mesh, lambda x: x.to(np.float32), [x], [[p]], [p])
    check(mesh, lambda x: x.to(np.int32), [x], [[S1]], [S1])
    check(mesh, lambda x: (x / 2).to(np.int32), [x], [[P]], [INV], forward=several(comm, "all_reduce"))


# ---------------------------------------------------------------- picking by index
def check_picking(comm):
    """Of a dimension that is cut each rank picks what it holds: the result is a sum, and nothing is communicated."""
    mesh = mesh_of(comm)
    x, src = whole_array((7, 3), np.float64), whole_array((4, 3), np.float64, 1)
    rows = np.array([6, 0, 3, 3])
    index = np.array([[0, 6, 2], [1, 1, 1], [5, 3, 0], [6, 6, 6]])
    for p in (S0, Shard(0, sections=(3, 4)), Shard(0, unit=7)):
        check(mesh, lambda x, i: hd.index_select(x, 0, i), [x, rows], [[p], [INV]], [P])
        check(mesh, lambda x, i: hd.take_along_dim(x, i, 0), [x, index], [[p], [R]], [P])
        check(mesh, lambda x, i: hd.gather(x, -2, i), [x, index], [[p], [INV]], [P])
        kept = placed_alike_of(mesh, (7, 3), p)
        more = several(comm, "all_reduce")
        check(mesh, lambda x, i, s: hd.scatter_add(x, 0, i, s), [x, index, src], [[p], [R], [R]], kept)
        check(mesh, lambda x, i, s: hd.scatter_add(x, 0, i, s), [x, index, src], [[p], [R], [INV]], kept, backward=more)
    wide = x.T.copy()
    check(mesh, lambda x, i: hd.index_select(x, 1, i), [wide, rows], [[S1], [INV]], [P])
    check(
        mesh,
        lambda x, i: hd.take_along_dim(x, i, -1),
        [wide, index[:1]],
        [[S1], [INV]],
        [P],
    )


def check_picking_elsewhere(comm):
    """Other dimensions, and indices, may be cut; sums pass, but indices are never taken for one."""
    mesh = mesh_of(comm)
    x, src = whole_array((7, 3), np.float64), whole_array((4, 3), np.float64, 1)
    rows, index = np.array([6, 0, 3, 3]), np.array([[0, 6, 2], [1, 1, 1], [5, 3, 0], [6, 6, 6]])
    check(mesh, lambda x, i: hd.index_select(x, 0, i), [x, rows], [[S1], [INV]], [S1])
    check(mesh, lambda x, i: hd.index_select(x, 0, i), [x, rows], [[R], [S0]], [S0])
    check(mesh, lambda x, i: hd.index_select(x, 0, i), [x, rows], [[P], [INV]], [P])
    check(mesh, lambda x, i: hd.take_along_dim(x, i, 0), [x, index], [[R], [S0]], [S0])
    check(mesh, lambda x, i: hd.take_along_dim(x, i, 0), [x, index], [[S1], [S1]], [S1])
    check(mesh, lambda x, i: hd.take_along_dim(x, i, 0), [x, index], [[P], [INV]], [P])

    def scatter(x, i, s):
        return hd.scatter_add(x, 0, i, s)

    check(mesh, scatter, [x, index, src], [[P], [INV], [P]], [P])
    check(mesh, scatter, [x, index, src], [[P], [INV], [INV]], [P])
    check(mesh, scatter, [x, index, src], [[INV], [S0], [S0]], [P])
    check(mesh, scatter, [x, index, src], [[S1], [S1], [S1]], [S1])
    with pytest.raises(ValueError, match="out of range"):
        hd.index_select(placed(x, mesh, [S0]), 0, placed(np.array([7]), mesh, [INV]))


def check_picking_on_two_axes(comm):
    if comm.size % 2:
        return
    mesh = mesh_of(comm, comm.size // 2, 2)
    x, rows = whole_array((7, 3), np.float64), np.array([6, 0, 3, 3, 2])
    check(mesh, lambda x, i: hd.index_select(x, 0, i), [x, rows], [[R, S0], [S0, INV]], [S0, P])
    check(mesh, lambda x, i: hd.index_select(x, 0, i), [x, rows], [[S1, S0], [INV, INV]], [S1, P])
    for order in ((0, 1), (1, 0)):
        orders = [order, None]
        check(mesh, lambda x, i: hd.index_select(x, 0, i), [x, rows], [[S0, S0], [INV, INV]], [P, P], orders=orders)


# ---------------------------------------------------------------- heads, gates
def check_attention(comm, num_heads):
    """Heads are whole on a rank, which may hold none; another cut is refused with the one that helps."""
    mesh, width = mesh_of(comm), 4
    qkv = draw((2, 3, 3 * num_heads * width))

    def attend(x):
        return F.packed_attention(F.rotary(x, num_heads), num_heads)

    into = placed_alike_of(mesh, (2, 3, num_heads * width), Shard(2, width))
    check(mesh, attend, [qkv], [[Shard(2, 3 * width)]], into, exact=False)
    check(mesh, attend, [qkv], [[S0]], [S0], exact=False)
    check(mesh, lambda x: F.rotary(x, num_heads), [qkv], [[P]], [P], exact=False)
    if num_heads % comm.size:
        for fn in (attend, lambda x: F.packed_attention(x, num_heads)):
            words = rf"whole heads, of {3 * width} elements(.|\n)*Shard\(2, unit={3 * width}\)"
            refused(mesh, fn, [qkv], [[S2]], words)


def check_grouped_heads(comm, num_heads, num_kv_heads):
    mesh, width = mesh_of(comm), 2
    group = num_heads // num_kv_heads
    qkv = draw((2, 3, (num_heads + 2 * num_kv_heads) * width))

    def attend(x):
        return F.packed_attention(F.ungroup(x, num_heads, num_kv_heads), num_heads)

    unit = (group + 2) * width
    into = placed_alike_of(mesh, (2, 3, num_heads * width), Shard(2, group * width))
    check(mesh, attend, [qkv], [[Shard(2, unit)]], into, exact=False)
    if num_kv_heads % comm.size and comm.size > 1:
        refused(mesh, attend, [qkv], [[S2]], rf"ungroup.*whole heads, of {unit} elements")


def check_heads_on_two_axes(comm):
    if comm.size % 2:
        return
    mesh = mesh_of(comm, comm.size // 2, 2)
    qkv = draw((3, 3, 36))
    check(mesh, lambda x: F.packed_attention(x, 3), [qkv], [[S0, Shard(2, 12)]], exact=False)
    for order in ((0, 1), (1, 0)):
        nested = [Shard(2, 12), Shard(2, 12)]
        check(mesh, lambda x: F.packed_attention(x, 3), [qkv], [nested], orders=[order], exact=False)


def check_swiglu(comm):
    """Gate and up are cut alike by sections."""
    mesh = mesh_of(comm)
    for n in (6, 5, 1):
        x = draw((3, 2 * n))
        check(mesh, F.swiglu, [x], [[Shard(-1, sections=(n, n))]], [S1], exact=False)
        check(mesh, F.swiglu, [x], [[S0]], [S0], exact=False)
        if comm.size > 1:
            refused(mesh, F.swiglu, [x], [[S1]], rf"gate \| up(.|\n)*sections=\({n}, {n}\)")
    check(mesh, F.swiglu, [draw((3, 12))], [[Shard(1, 2, sections=(6, 6))]], exact=False)


def draw(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# ---------------------------------------------------------------- biases beside sums over ranks
def check_row_parallel(comm):
    """Features of a linear map that are cut make a sum over ranks, to which one adds the bias."""
    mesh = mesh_of(comm)
    x, w, b = (whole_array(s, np.float64, i) for i, s in enumerate(((5, 7), (3, 7), (3,))))
    for bias in (INV, R):
        check(mesh, F.linear, [x, w, b], [[S1], [S1], [bias]], [P])
    check(mesh, F.linear, [x, w], [[S1], [S1]], [P])
    check(mesh, F.linear, [x, w, b], [[INV], [S1], [INV]], [P], backward=several(comm, "all_gather"))
    check(mesh, F.linear, [x, w, b], [[R], [S0], [S0]], [S1])


def check_row_parallel_on_two_axes(comm):
    if comm.size % 2:
        return
    mesh = mesh_of(comm, comm.size // 2, 2)
    x, w, b = (whole_array(s, np.float64, i) for i, s in enumerate(((5, 7), (3, 7), (3,))))
    check(mesh, F.linear, [x, w, b], [[S0, S1], [R, S1], [R, INV]], [S0, P])
    check(
        mesh,
        F.linear,
        [x, w, b],
        [[S0, S1], [R, S1], [INV, INV]],
        [S0, P],
        backward=several(comm, "all_reduce", mesh.shape[0]),
    )
    check(
        mesh,
        F.linear,
        [x, w, b],
        [[S0, S1], [INV, S1], [INV, INV]],
        [S0, P],
        backward=several(comm, "all_reduce", mesh.shape[0]),
    )
    check(mesh, F.linear, [x, w, b], [[S1, S1], [S1, S1], [INV, INV]], [P, P])


def check_convolutions(comm):
    """Images and channels may be cut; channels that are summed over make a sum over ranks beside a bias."""
    mesh = mesh_of(comm)
    x, w, b = (whole_array(s, np.float64, i) for i, s in enumerate(((3, 5, 6, 6), (4, 5, 3, 3), (4,))))
    t = whole_array((5, 4, 3, 3), np.float64, 3)
    for fn, weight, own, other in ((F.conv2d, w, S0, S1), (F.conv_transpose2d, t, S1, S0)):
        check(mesh, fn, [x, weight, b], [[S0], [R], [R]], [S0])
        check(mesh, fn, [x, weight, b], [[R], [own], [S0]], [S1])
        check(mesh, fn, [x, weight, b], [[S1], [other], [INV]], [P])
        check(mesh, fn, [x, weight], [[S1], [other]], [P])
        refused(mesh, fn, [x, weight, b], [[S2], [INV], [INV]], "conv")


def check_planes(comm):
    """Batch and channels of pooling, resampling and norms may be cut; planes must be whole."""
    mesh = mesh_of(comm)
    x, w, b = draw((3, 4, 6, 6)), draw(4, 1), draw(4, 2)
    for fn in (lambda x: F.max_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2), lambda x: F.interpolate(x, scale_factor=2)):
        check(mesh, fn, [x], [[S0]], [S0], exact=False)
        check(mesh, fn, [x], [[S1]], [S1], exact=False)
        refused(mesh, fn, [x], [[S2]], "input 0")
    check(mesh, lambda x, w, b: F.group_norm(x, 2, w, b), [x, w, b], [[S0], [R], [R]], [S0], exact=False)
    refused(mesh, lambda x, w, b: F.group_norm(x, 2, w, b), [x, w, b], [[S1], [INV], [INV]], "group_norm")


def check_others(comm):
    """Recurrences by batch, products by any letter, transforms by what they leave alone, complex numbers."""
    mesh = mesh_of(comm)
    a, b = whole_array((3, 4, 5), np.float64), whole_array((3, 5, 2), np.float64, 1)
    for p, q, into in ((S0, S0, S0), (S1, R, S1), (S2, S1, P), (R, S2, S2), (P, R, P)):
        check(mesh, lambda a, b: hd.einsum("bij,bjk->bik", a, b), [a, b], [[p], [q]], [into])
    check(mesh, lambda x: hd.fft.rfft(x, dim=1), [a], [[S0]], [S0], exact=False)
    refused(mesh, lambda x: hd.fft.rfft(x, dim=1), [a], [[S1]], "fft")
    check(mesh, lambda x: hd.view_as_real(hd.complex(x, 2 * x)), [a], [[S1]], [S1])
    check(mesh, lambda x: hd.real(hd.conj(hd.complex(x, x))), [a], [[P]], [P])
    gates, h, w = draw((4, 3, 12)), draw((3, 4), 1), draw((12, 4), 2)

    def gru(gates, h, w):
        return apply(OPS["gru"], gates, h, w, reverse=False)[0]

    check(mesh, gru, [gates, h, w], [[S1], [S0], [R]], [S1], exact=False)
    refused(mesh, gru, [gates, h, w], [[S0], [INV], [INV]], "gru")


BODIES = [value for name, value in sorted(globals().items()) if name.startswith("check_")]
"""All of the bodies above."""
ARGUMENTS = {
    check_reshape: RESHAPES,
    check_random_views: [(seed,) for seed in range(6)],
    check_heads_of_features: [(1,), (3,), (4,)],
    check_attention: [(1,), (3,), (4,)],
    check_grouped_heads: [(4, 2), (6, 3), (3, 3)],
}
CASES = [
    pytest.param(body, given, id=f"{body.__name__[6:]}{'-' * bool(given)}{'-'.join(map(str, given))}")
    for body in BODIES
    for given in ARGUMENTS.get(body, [()])
]
