"""Distributed tensors against global NumPy answers: bodies of tests that take a communicator, or a mesh on it."""

import contextlib
import itertools
import sys

import numpy as np
import pytest
from move_suite import AVG, COLLECTIVE, INV, S0, S1, P, R, joined, pieces, whole_array

import hpcdist as hd
import hpcdist.nn.functional as F
from hpcdist import dtensor
from hpcdist.autograd import Tensor, random
from hpcdist.comm import DeviceMesh, init_device_mesh
from hpcdist.dtensor import DTensor, Partial, Shard, distribute_tensor, dual
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.dtensor.layout import Layout
from hpcdist.errors import DistError

LINEAR = (S0, S1, P, R, INV)
MESHES = {1: [(1,), (1, 1)], 2: [(2,), (1, 2)], 3: [(3,), (3, 1)], 4: [(4,), (2, 2)]}
"""Shapes of meshes, by number of ranks."""
SHAPES = [(5, 7), (1, 4), (6, 2), (0, 3)]


def meshes(comm):
    """Yield meshes of all ranks with one axis and with two."""
    for shape in MESHES[comm.size]:
        yield init_device_mesh(shape, ("dp", "tp")[-len(shape) :], comm)


def layouts(ndim):
    """Return (placements, order) of all layouts by linear placements; two orders where two axes cut one dimension."""
    found = []
    for placements in itertools.product(LINEAR, repeat=ndim):
        found.append((placements, tuple(range(ndim))))
        if ndim == 2 and placements[0] == placements[1] and isinstance(placements[0], Shard):
            found.append((placements, (1, 0)))
    return found


# ---------------------------------------------------------------- by hand
def cut_up(whole, mesh_shape, placements, order):
    """Return what the rank at each coordinate holds, cut by one axis after the other."""
    held = {(): whole}
    for axis in order:
        held = {
            (*place, coord): part
            for place, x in held.items()
            for coord, part in enumerate(pieces(x, placements[axis], mesh_shape[axis]))
        }
    return {tuple(place[order.index(axis)] for axis in range(len(order))): part for place, part in held.items()}


def put_together(held, mesh_shape, placements, order):
    """Undo :func:`cut_up`; check that copies are equal."""
    held = {tuple(place[axis] for axis in order): part for place, part in held.items()}
    for axis in reversed(order):
        places = dict.fromkeys(place[:-1] for place in held)
        held = {p: joined([held[(*p, c)] for c in range(mesh_shape[axis])], placements[axis]) for p in places}
    return held[()]


def everyone(mesh, value):
    """Return the value of each rank by its coordinate."""
    return dict(zip(np.ndindex(mesh.shape), mesh.get_mesh_group().all_gather_object(value), strict=True))


def assert_is(x, whole):
    """Check a distributed tensor on all ranks: what they hold makes up ``whole``."""
    assert x.shape == whole.shape
    held = everyone(x.device_mesh, x.data)
    np.testing.assert_array_equal(put_together(held, x.device_mesh.shape, x.placements, x.layout.order), whole)
    own = cut_up(whole, x.device_mesh.shape, x.placements, x.layout.order)[x.device_mesh.get_coordinate()]
    assert x.data.shape == own.shape
    if not any(isinstance(p, Partial) for p in x.placements):
        np.testing.assert_array_equal(x.data, own)


def placed(whole, mesh, placements, order=None, requires_grad=False):
    """Return ``whole`` as a distributed tensor, cut by hand."""
    order = tuple(range(mesh.ndim)) if order is None else order
    own = cut_up(whole, mesh.shape, placements, order)[mesh.get_coordinate()]
    return DTensor(Tensor(own, requires_grad), Layout.of(mesh, placements, whole.shape, order))


def same_error(mesh, kind, match, call):
    """Check that a call raises one error, with one message, on every rank of the mesh."""
    with pytest.raises(kind, match=match) as caught:
        call()
    texts = everyone(mesh, str(caught.value))
    assert len(set(texts.values())) == 1, texts


@contextlib.contextmanager
def silent():
    """Check that a block communicates nothing."""
    with CommDebugMode() as mode:
        yield
    assert mode.get_total_counts() == 0, mode.records


# ---------------------------------------------------------------- redistribute
def verb(src, dst):
    """Return the table's collective for a change of one axis, or None."""
    if src == dst:
        return None
    posted = COLLECTIVE.get((type(src).__name__, type(dst).__name__))
    return posted and posted[1:]


def nested(placements):
    """Say whether two axes cut one dimension."""
    dims = [p.dim for p in placements if isinstance(p, Shard)]
    return len(dims) != len(set(dims))


def theory(whole, mesh, src, dst):
    """Return verbs and bytes of this rank for the best sequence of single moves; None where one would have to nest."""
    axes = [axis for axis in range(mesh.ndim) if src[axis] != dst[axis]]
    found = []
    for turns in itertools.permutations(axes):
        now, verbs, nbytes = list(src), [], 0
        for axis in turns:
            if verb(now[axis], dst[axis]) and mesh.shape[axis] > 1:
                held = cut_up(whole, mesh.shape, now, range(mesh.ndim))[mesh.get_coordinate()]
                verbs.append(verb(now[axis], dst[axis]))
                nbytes += held.nbytes
            now[axis] = dst[axis]
            if nested(now):
                break
        else:
            found.append((sorted(verbs), nbytes))
    return None if nested(src) else min(found, key=lambda way: way[1], default=None)


def check_redistribute(mesh, shape, src, dst):
    """Values, layout, gradient, and what is sent: one layout (placements, order) to another."""
    whole = whole_array(shape, np.float64)
    x = placed(whole, mesh, *src, requires_grad=True)
    with CommDebugMode() as forward:
        y = x.redistribute(placements=dst[0], order=dst[1])
    assert y.layout is Layout.of(mesh, dst[0], shape, dst[1])
    assert_is(y, whole)
    upstream = whole_array(shape, np.float64, seed=7)
    g = placed(upstream, mesh, [dual(p) for p in dst[0]], dst[1])
    with CommDebugMode() as backward:
        y.local.backward(g.data)
    assert_is(x.gradient(), upstream)
    exact = mesh.ndim == 1 or (min(mesh.shape) > 1 and all(n % size == 0 for n in shape for size in mesh.shape))
    check_traffic(forward, theory(whole, mesh, src[0], dst[0]), mesh, exact=exact)
    back = theory(whole, mesh, [dual(p) for p in dst[0]], [dual(p) for p in src[0]])
    check_traffic(backward, back, mesh, exact=exact)


def check_traffic(mode, expected, mesh, *, exact):
    """Compare with theory; layouts in which two axes cut one dimension take one exchange more at most.

    Bytes are compared where they do not depend on which of two equal moves is made first, as with uneven shards.
    """
    verbs = sorted(mode.get_comm_counts().elements())
    if expected is None:
        assert len(verbs) <= mesh.ndim + 1
        return
    assert verbs == expected[0]
    assert not exact or sum(mode.get_comm_bytes().values()) == expected[1]


def check_async(mesh, shape, src, dst):
    """Waiting for the work gives what the blocking form gives, by the same messages."""
    x = placed(whole_array(shape, np.float64), mesh, *src, requires_grad=True)
    with CommDebugMode() as blocking:
        expected = x.redistribute(placements=dst[0], order=dst[1])
    with CommDebugMode() as mode:
        y = x.redistribute(placements=dst[0], order=dst[1], async_op=True).wait()
    assert y.layout is expected.layout
    np.testing.assert_array_equal(y.data, expected.data)
    assert (mode.get_comm_counts(), mode.get_comm_bytes()) == (blocking.get_comm_counts(), blocking.get_comm_bytes())
    g = placed(whole_array(shape, np.float64, seed=7), mesh, [dual(p) for p in dst[0]], dst[1])
    y.local.backward(g.data)
    assert_is(x.gradient(), whole_array(shape, np.float64, seed=7))


def check_b16(comm):
    """Rows to columns and back, in order, each by one all-to-all; a sum that is cut along either dimension."""
    mesh = init_device_mesh(comm.size, "tp", comm)
    whole = np.arange(35.0).reshape(5, 7)
    x = placed(whole, mesh, [S0], requires_grad=True)
    with CommDebugMode() as mode:
        y = x.redistribute(placements=[S1])
    assert mode.get_comm_counts() == ({"all_to_all": 1} if comm.size > 1 else {})
    assert mode.get_comm_bytes() == ({"all_to_all": x.data.nbytes} if comm.size > 1 else {})
    assert_is(y, whole)
    if comm.size == 3 and comm.rank == 2:
        np.testing.assert_array_equal(y.data[:, 0], [6, 13, 20, 27, 34])
    z = y.redistribute(placements=[S0]).redistribute(placements=[R])
    assert_is(z, whole)
    with CommDebugMode() as mode:
        z.local.backward(whole)  # each rank has its own: the gradient is their sum
    assert mode.get_comm_counts() == ({"reduce_scatter": 1, "all_to_all": 2} if comm.size > 1 else {})
    assert_is(x.gradient(), comm.size * whole)
    parts = np.arange(10.0).reshape(5, 2)
    total = sum(range(1, comm.size + 1)) * parts
    for dst in (S0, S1, R, INV):
        x = DTensor.from_local(Tensor((comm.rank + 1) * parts, requires_grad=True), mesh, [P])
        y = x.redistribute(placements=[dst])
        assert_is(y, total)
        y.local.backward(placed(parts, mesh, [dual(dst)]).data)
        np.testing.assert_array_equal(x.grad, parts)
    for src in (R, INV):  # to a sum and back: nothing is scaled
        x = placed(parts, mesh, [src], requires_grad=True)
        y = x.redistribute(placements=[P])
        assert_is(y, parts)
        y.redistribute(placements=[INV]).local.backward(parts)
        assert_is(x.gradient(), parts)


# ---------------------------------------------------------------- distribute
def check_distribute(mesh, shape, placements, order, source):
    """The values of the source, cut as asked; each axis that cuts is one scatter, each other one broadcast."""
    whole = whole_array(shape, np.float32)
    leaf = Tensor(whole if mesh.get_mesh_group().rank == source else np.full_like(whole, -1), requires_grad=True)
    with CommDebugMode() as mode:
        x = distribute_tensor(leaf, mesh, placements, src_data_rank=source, order=order)
    assert_is(x, whole)
    assert x.is_leaf
    assert x.requires_grad
    assert x.layout is Layout.of(mesh, placements, shape, order)
    assert not np.shares_memory(x.data, leaf.data)
    counts = mode.get_comm_counts()
    assert counts.pop("object") == 1
    assert set(counts) <= {"scatter" if isinstance(p, Shard) else "broadcast" for p in placements}
    total = sum(everyone(mesh, counts.total()).values())
    assert total == members_of_turns(mesh, placements, order)
    with silent():
        alone = distribute_tensor(whole, mesh, placements, src_data_rank=None, order=order)
    assert_is(alone, whole)
    assert not alone.requires_grad
    assert not np.shares_memory(alone.data, whole)


def members_of_turns(mesh, placements, order):
    """Return how many calls all ranks make together: a row of the last axis first, then more, at last all of them."""
    turns = sorted(order, key=lambda axis: not isinstance(placements[axis], Shard))  # stable: those that cut come first
    return sum(np.prod([mesh.shape[axis] for axis in turns[: i + 1]]) for i in range(mesh.ndim))


def check_distribute_all(comm):
    """All layouts on one axis and on two, from the first rank and from the last."""
    for mesh in meshes(comm):
        for placements, order in layouts(mesh.ndim):
            for shape, source in (((5, 7), 0), ((5, 7), comm.size - 1), ((1, 4), 0)):
                check_distribute(mesh, shape, placements, order, source)


def check_distribute_errors(comm):
    """One rank gives something else: all ranks say the same."""
    mesh = init_device_mesh(comm.size, "tp", comm)
    last = comm.rank == comm.size - 1
    x = np.zeros((4, 2))
    computed = Tensor(x, requires_grad=True) * 2
    other = f"rank {comm.size - 1} of the mesh"
    for match, call in (
        (other, lambda: distribute_tensor(x[:3] if last else x, mesh, [S0])),
        (other, lambda: distribute_tensor(x.astype(np.float32) if last else x, mesh, [S0])),
        (other, lambda: distribute_tensor(x, mesh, [S1 if last else S0])),
        (other, lambda: distribute_tensor(x, mesh, [S0], src_data_rank=1 if last else 0)),
        ("a leaf", lambda: distribute_tensor(computed if last else x, mesh, [S0])),
        ("one of Shard", lambda: distribute_tensor(x, mesh, [S0, S0] if last else [S0])),
        ("dim", lambda: distribute_tensor(x[0] if last else x, mesh, [S1])),
        ("src_data_rank", lambda: distribute_tensor(x, mesh, [S0], src_data_rank=comm.size)),
        ("product", lambda: distribute_tensor(x, mesh, [Partial("product")])),
    ):
        same_error(mesh, ValueError, match, call)
    assert_is(distribute_tensor(x, mesh, [S0]), x)


def check_b09(comm):
    """A mesh of ranks 0 and 2 of 4: its members hold halves, the others are told, and all of them go on together."""
    mesh = DeviceMesh([0, 2], "pair", comm)
    if comm.rank in (0, 2):
        x = distribute_tensor(np.arange(4), mesh, [S0])
        np.testing.assert_array_equal(x.data, [0, 1] if comm.rank == 0 else [2, 3])
        value = DTensor.from_local(np.array(comm.rank + 1.0), mesh, [P])
        assert value.item() == 4
        assert DTensor.from_local(np.array(comm.rank + 1.0), mesh, [AVG]).item() == 2
        y = distribute_tensor(np.full(3, comm.rank), mesh, [INV], src_data_rank=1)  # a position in the mesh
        np.testing.assert_array_equal(y.data, 2)
    else:
        assert mesh.get_coordinate() is None
        for call in (
            lambda: distribute_tensor(np.arange(4), mesh, [S0]),
            lambda: distribute_tensor(np.arange(4), mesh, [S0], src_data_rank=None),
            lambda: DTensor.from_local(np.arange(2), mesh, [S0]),
            lambda: DTensor.from_local(np.arange(2), mesh),
        ):
            with pytest.raises(DistError, match="not in the mesh"):
                call()
    assert comm.all_reduce(np.array(1.0)) == 4


# ---------------------------------------------------------------- from_local
def check_from_local(mesh, shape, placements, order):
    """One small exchange tells the shape of the whole; none is needed where nothing is cut or the shape is given."""
    whole = whole_array(shape, np.float64)
    own = cut_up(whole, mesh.shape, placements, order)[mesh.get_coordinate()]
    with CommDebugMode() as mode:
        x = DTensor.from_local(own, mesh, placements, order=order)
    cuts = any(isinstance(p, Shard) for p in placements)
    assert mode.get_comm_counts() == ({"object": 1} if cuts else {})
    assert x.data is own
    assert x.layout is Layout.of(mesh, placements, shape, order)
    with silent():
        assert DTensor.from_local(own, mesh, placements, shape=shape, order=order).layout is x.layout
    with CommDebugMode() as mode:
        assert DTensor.from_local(own, mesh, placements, run_check=True, order=order).layout is x.layout
    assert mode.get_comm_counts() == {"object": 1}


def check_from_local_all(comm):
    """All layouts on one axis and on two."""
    for mesh in meshes(comm):
        for placements, order in layouts(mesh.ndim):
            for shape in SHAPES:
                check_from_local(mesh, shape, placements, order)


def check_from_local_gradients(comm):
    """The graph goes on: gradients arrive as the dual says, or as asked."""
    mesh = init_device_mesh(comm.size, "tp", comm)
    g = whole_array((5, 2), np.float64, seed=3)
    for placement, wanted, calls in (
        (S0, None, {}),
        (R, None, {}),
        (INV, None, {}),
        (P, None, {}),
        (S0, S0, {}),
        (R, P, {}),
        (R, INV, {"all_reduce": 1}),
        (INV, INV, {}),
        (INV, P, {}),
    ):
        leaf = placed(whole_array((5, 2), np.float64), mesh, [placement]).local
        leaf.requires_grad = True
        asked = None if wanted is None else [wanted]
        x = DTensor.from_local(leaf * 2, mesh, [placement], shape=(5, 2), grad_placements=asked)
        assert not x.is_leaf
        with CommDebugMode() as mode:
            x.local.backward(placed(g, mesh, [dual(placement)]).data)
        assert mode.get_comm_counts() == (calls if comm.size > 1 else {})
        came = DTensor(Tensor(leaf.grad), Layout.of(mesh, [dual(placement) if wanted is None else wanted], (5, 2)))
        assert_is(came, 2 * g)
    for placement, wanted in ((S0, P), (P, INV), (R, S0), (S0, S1)):
        with pytest.raises(ValueError, match="grad_placements"):
            DTensor.from_local(
                placed(g, mesh, [placement]).data, mesh, [placement], shape=(5, 2), grad_placements=[wanted]
            )


def check_b11(comm):
    """Rows 3, 3, 3, 1 make 10; rows 1, 3, 3, 3 and anything that does not fit are refused on all ranks alike."""
    mesh = init_device_mesh(4, "tp", comm)
    x = DTensor.from_local(np.full(((3, 3, 3, 1)[comm.rank], 2), comm.rank), mesh, [S0])
    assert x.shape == (10, 2)
    np.testing.assert_array_equal(x.full_tensor().numpy()[:, 0], [0, 0, 0, 1, 1, 1, 2, 2, 2, 3])
    for shape in ((5, 10), (1, 4), (3,), (0, 4)):
        whole = whole_array(shape, np.float64)
        x = distribute_tensor(Tensor(whole, requires_grad=True), mesh, [S0])
        assert_is(x, whole)
        y = x.redistribute(placements=[R])
        assert_is(y, whole)
        y.local.backward(np.full(shape, comm.rank + 1.0))
        assert_is(x.gradient(), np.full(shape, 10.0))
        assert x.data.shape[1:] == shape[1:]
    last = comm.rank == 3
    for match, local, placement in (
        ("rank at", np.zeros(((1, 3, 3, 3)[comm.rank], 2)), S0),
        ("rank at", np.zeros((2, 3 if last else 2)), S0),
        ("dtype", np.zeros((2, 2), np.float32 if last else np.float64), S0),
        ("number of dimensions", np.zeros((2, 2, 1) if last else (2, 2)), S0),
        ("dim", np.zeros(2 if last else (2, 2)), S1),
        ("placements", np.zeros((2, 2)), S1 if last else S0),
        ("sections", np.zeros((2, 2)), Shard(0, sections=(4, 3))),
    ):
        same_error(mesh, ValueError, match, lambda local=local, p=placement: DTensor.from_local(local, mesh, [p]))
    assert comm.all_reduce(np.array(1.0)) == 4


def check_run_check(comm):
    """Copies that differ in a bit are found, and named, on every rank; parts of a sum may differ."""
    mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
    last = comm.rank == 3
    differing = np.array([0.0, -0.0 if last else 0.0])
    for placements, match in (
        ([INV, INV], r"\(1, 1\).*\n.*other values\n.*\(0, 0\)"),
        ([S0, R], r"\(1, 1\).*\n.*other values\n.*\(1, 0\)"),
        ([INV, P], r"\(1, 1\).*\n.*other values\n.*\(0, 1\)"),
    ):
        same_error(mesh, ValueError, match, lambda p=placements: DTensor.from_local(differing, mesh, p, run_check=True))
        DTensor.from_local(differing, mesh, placements)
    for placements in ([P, P], [S0, P], [S0, S0]):
        DTensor.from_local(differing, mesh, placements, run_check=True)
    same_error(
        mesh,
        ValueError,
        "rank at",
        lambda: DTensor.from_local(np.zeros(3 if last else 2), mesh, [INV, INV], run_check=True),
    )


# ---------------------------------------------------------------- factories
def check_factories(comm):
    """All factories in all layouts against NumPy, and draws of the whole array."""
    shape = (5, 7)
    hd.manual_seed(11)
    uniform = random.uniform(random.next_key("rand"), shape)
    normal = random.normal(random.next_key("randn"), shape, np.float64)
    for mesh in meshes(comm):
        for placements, order in layouts(mesh.ndim):
            where = {"device_mesh": mesh, "placements": placements, "order": order}
            with silent():
                hd.manual_seed(11)
                made = [
                    (dtensor.rand(5, 7, **where), uniform),
                    (dtensor.randn(shape, dtype=np.float64, **where), normal),
                    (dtensor.zeros(shape, **where), np.zeros(shape)),
                    (dtensor.ones(5, 7, **where), np.ones(shape)),
                    (dtensor.full(shape, 3, **where), np.full(shape, 3)),
                    (dtensor.eye(5, 7, **where), np.eye(5, 7)),
                    (
                        dtensor.from_function(lambda i, j: 10 * i + j, shape, **where),
                        np.add.outer(10 * np.arange(5), np.arange(7)),
                    ),
                ]
                empty = dtensor.empty(shape, **where)
            for x, expected in made:
                np.testing.assert_array_equal(x.full_tensor().data, expected)
                assert x.layout is empty.layout is Layout.of(mesh, placements, shape, order)
            if S1 not in placements:
                assert_is(dtensor.arange(1, 15, 2, **where), np.arange(1, 15, 2))


def check_dropout(comm):
    """The mask of one process in every layout, forward and backward."""
    shape = (12, 5)
    whole, g = whole_array(shape, np.float64) + 7, whole_array(shape, np.float64, seed=2)
    reference = Tensor(whole, requires_grad=True)
    hd.manual_seed(2)
    expected = F.dropout(reference, 0.25)
    expected.backward(g)
    for mesh in meshes(comm):
        for placements, order in layouts(mesh.ndim):
            x = placed(whole, mesh, placements, order, requires_grad=True)
            hd.manual_seed(2)
            with silent():
                y = F.dropout(x, 0.25)
            assert y.layout is x.layout
            np.testing.assert_allclose(y.full_tensor().data, expected.data, rtol=1e-12, atol=1e-12)
            y.local.backward(placed(g, mesh, [dual(p) for p in placements], order).data)
            np.testing.assert_allclose(x.gradient().full_tensor().data, reference.grad, rtol=1e-12, atol=1e-12)


def check_b17(comm):
    """Masks on a mesh dp = 2, tp = 2: equal where replicated, different where cut, and those of one process."""
    mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
    ones = {"device_mesh": mesh, "requires_grad": True}
    hd.manual_seed(17)
    replicated = F.dropout(dtensor.ones(128, 64, placements=[S0, R], **ones), 0.5)
    masks = everyone(mesh, replicated.data)
    np.testing.assert_array_equal(masks[0, 0], masks[0, 1])
    np.testing.assert_array_equal(masks[1, 0], masks[1, 1])
    assert (masks[0, 0] != masks[1, 0]).any()
    assert set(np.unique(masks[0, 0])) == {0.0, 2.0}
    assert all(0.461 < (mask != 0).mean() < 0.539 for mask in masks.values())

    hd.manual_seed(17)
    x = dtensor.ones(128, 64, placements=[S0, S1], **ones)
    cut = F.dropout(x, 0.5)
    halves = everyone(mesh, cut.data)
    assert (halves[0, 0] != halves[0, 1]).any()
    whole = replicated.full_tensor().data
    np.testing.assert_array_equal(cut.full_tensor().data, whole)

    state = random.get_state()
    following = F.dropout(x, 0.5)
    assert (following.data != cut.data).any()
    assert F.dropout(x, 0.5, training=False) is x
    cut.sum().backward()
    np.testing.assert_array_equal(x.grad, cut.data)
    random.set_state(state)  # as after a checkpoint, and as where a forward is computed again
    np.testing.assert_array_equal(F.dropout(x, 0.5).data, following.data)


# ---------------------------------------------------------------- chunks
def settled_layouts(ndim):
    """Return the layouts without Partial."""
    return [(p, order) for p, order in layouts(ndim) if P not in p]


def check_chunks(mesh, whole, placements, order):
    """Every element of the whole is saved once over all ranks, as a view; and any rank can fill what it holds."""
    x = placed(whole, mesh, placements, order)
    with silent():
        mine = x.chunks()
    assert all(np.shares_memory(c.data, x.data) and c.data.shape == c.sizes and 0 not in c.sizes for c in mine)
    saved = np.zeros(whole.shape, int)
    restored = np.full_like(whole, -99)
    for chunks in everyone(mesh, mine).values():
        for offsets, sizes, data in chunks:
            box = tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
            saved[box] += 1
            restored[box] = data
    assert (saved == 1).all()
    np.testing.assert_array_equal(restored, whole)
    y = placed(np.full_like(whole, -99), mesh, placements, order)
    before = y.data
    with silent():
        y.fill(lambda offsets, sizes: restored[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))])
    assert y.data is before
    assert_is(y, whole)


def check_chunks_all(comm):
    """All layouts without Partial; uneven, empty, and without dimensions."""
    for mesh in meshes(comm):
        for placements, order in settled_layouts(mesh.ndim):
            for shape in SHAPES:
                check_chunks(mesh, whole_array(shape, np.float32), placements, order)
        for whole in (INV, R):
            check_chunks(mesh, np.array(3.5), [whole] * mesh.ndim, None)
            check_chunks(mesh, np.arange(3), [whole] * mesh.ndim, None)


def check_b19(comm):
    """Rows cut by tensor parallelism, then by FSDP: rank (i, j) holds row 2 j + i; so do other ways there."""
    mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
    i, j = mesh.get_coordinate()
    rows = np.arange(4.0).reshape(4, 1)
    for x in (
        distribute_tensor(Tensor(rows, requires_grad=True), mesh, [S0, S0], order=(1, 0)),
        DTensor.from_local(Tensor(rows[[2 * j + i]], requires_grad=True), mesh, [S0, S0], order=(1, 0)),
        distribute_tensor(Tensor(rows, requires_grad=True), mesh, [INV, S0]).redistribute(placements=[S0, S0]),
    ):
        np.testing.assert_array_equal(x.data, [[2 * j + i]])
        np.testing.assert_array_equal(x.full_tensor().data, rows)
        assert [c[:2] for c in x.chunks()] == [((2 * j + i, 0), (1, 1))]
        if x.is_leaf:
            (x * distribute_tensor(rows, mesh, [INV, INV])).sum().backward()
            assert_is(x.gradient(), rows)
    for n, order in ((5, (1, 0)), (5, (0, 1)), (2, (0, 1)), (1, (1, 0))):
        rows = np.arange(float(n)).reshape(n, 1)
        check_chunks(mesh, rows, [S0, S0], order)
        x = distribute_tensor(rows, mesh, [S0, S0], order=order)
        np.testing.assert_array_equal(x.full_tensor().data, rows)
        other = x.redistribute(placements=[S0, S0], order=order[::-1])
        assert_is(other, rows)
    plain = distribute_tensor(np.arange(5.0), mesh, [S0, S0])
    held = [(c[0].offsets[0], c[0].sizes[0]) for c in everyone(mesh, plain.chunks()).values()]
    assert held == [(0, 2), (2, 1), (3, 1), (4, 1)]


# ---------------------------------------------------------------- reads
def check_reads(comm):
    """Reads finish what is not reduced, and agree on all ranks."""
    mesh = init_device_mesh(comm.size, "tp", comm)
    values = [float(rank + 2) for rank in range(comm.size)]
    mine = np.array(values[comm.rank])
    for op, expected in (
        ("sum", sum(values)),
        ("avg", np.mean(values)),
        ("max", max(values)),
        ("min", min(values)),
        ("product", np.prod(values)),
    ):
        x = DTensor.from_local(mine, mesh, [Partial(op)])
        assert x.item() == float(x) == expected
        assert int(x) == int(expected)
        assert bool(x)
        assert x.numpy() == expected
        assert x.data == mine  # and leave it as it was
        rows = DTensor.from_local(np.array([mine, -mine]), mesh, [Partial(op)])
        terms = np.array([values, [-v for v in values]])
        reduced = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min, "product": np.prod}[op](terms, axis=1)
        np.testing.assert_array_equal(rows.numpy(), reduced)
    zero = DTensor.from_local(np.array(comm.size - 1.0 if comm.rank == 0 else -1.0), mesh, [P])  # by parts it is not
    assert not bool(zero)
    one = distribute_tensor(np.array([[7.0]]), mesh, [S0])  # held by the first rank only
    assert one.item() == float(one) == int(one) == 7
    for whole in (INV, R):
        x = DTensor.from_local(np.array(4.0), mesh, [whole])
        with silent():
            assert x.item() == float(x) == x.numpy() == 4
    cut = distribute_tensor(np.arange(6.0), mesh, [S0])
    with silent():
        with pytest.raises(ValueError, match=r"full_tensor\(\)\.numpy\(\)"):
            cut.numpy()
        for read in (cut.item, cut.__float__, cut.__int__, cut.__bool__):
            with pytest.raises(ValueError, match="item: number of elements"):
                read()
    for call in (lambda: np.asarray(cut), lambda: np.sin(cut)):
        with pytest.raises(TypeError, match=r"numpy|NumPy"):
            call()


def check_texts(comm):
    """What is printed says shape, placements and mesh, whether it is reduced, and communicates nothing."""
    mesh = init_device_mesh(comm.size, "tp", comm)
    cut = distribute_tensor(np.arange(5.0), mesh, [S0])
    pending = DTensor.from_local(np.ones((2, 3)), mesh, [P])
    with silent():
        for x, shape, placement in ((cut, "(5,)", "Shard(0)"), (pending, "(2, 3)", "Partial")):
            for text in (repr(x), str(x), f"{x}", f"{x!r}", format(x), "%s" % x):  # noqa: UP031 (one more way)
                assert shape in text
                assert f"tp: {placement}" in text
                assert ("not reduced" in text) == (x is pending)
        sys.stdout.write(f"{cut} {pending}\n")


def check_mean(comm):
    """Case B12: the mean of uneven and empty parts is that of the whole, not of the parts' means."""
    mesh = init_device_mesh(comm.size, "tp", comm)
    for whole in (np.arange(12.0).reshape(3, 4), np.arange(4.0).reshape(1, 4)):
        x = distribute_tensor(Tensor(whole, requires_grad=True), mesh, [S0])
        mean = x.mean()
        assert mean.item() == whole.mean()
        mean.backward()
        assert_is(x.gradient(), np.full(whole.shape, 1 / whole.size))
        assert_close(x.mean(0), whole.mean(0))
        assert_close(x.var(correction=0), whole.var())
        e = np.exp(whole - whole.max(0))
        assert_close(F.softmax(x, 0), e / e.sum(0))


def assert_close(x, whole):
    """Compare the values of the whole."""
    np.testing.assert_allclose(x.full_tensor().data, whole, rtol=1e-12)


def check_alone(comm):
    """Every move on an axis of one rank is free, forward and backward, and is the identity; so is its async form."""
    alone = init_device_mesh((comm.size, 1), ("dp", "tp"), comm)
    whole = whole_array((4, 6), np.float64)
    sections = Shard(1, unit=1, sections=(2, 4))
    for src, dst in itertools.product((INV, R, P, Partial("avg"), S0, S1, sections), repeat=2):
        x = DTensor.from_local(Tensor(whole.copy(), requires_grad=True), alone, [INV, src])
        with CommDebugMode() as mode:
            y = x.redistribute(placements=[INV, dst])
            y.local.backward(whole)
            z = x.detach().redistribute(placements=[INV, dst], async_op=True).wait()
        assert not mode.records
        assert y.placements == z.placements == y.layout.placed([INV, dst]).placements
        for found in (y.data, z.data, x.grad):
            np.testing.assert_array_equal(found, whole)
    for op in ("max", "min", "product"):
        x = DTensor.from_local(whole.copy(), alone, [INV, Partial(op)])
        with CommDebugMode() as mode:
            np.testing.assert_array_equal(x.full_tensor().data, whole)
            x = DTensor.from_local(Tensor(whole.copy(), op != "product"), alone, [INV, Partial(op)])
            y = x.redistribute(placements=[INV, S0])
            if op != "product":
                y.local.backward(whole)
                np.testing.assert_array_equal(x.grad, whole)
        assert not mode.records
    nested = DTensor.from_local(whole, init_device_mesh((1, 1), ("a", "b"), comm), [S0, S0]) if comm.size == 1 else None
    if nested is not None:
        with CommDebugMode() as mode:
            nested.redistribute(placements=[S0, S0], order=(1, 0)).redistribute(placements=[S1, S1])
        assert not mode.records
