"""Distributed tensors against global NumPy answers: bodies of tests that take a communicator, or a mesh on it."""

import contextlib
import itertools

import numpy as np
import pytest
from move_suite import AVG, COLLECTIVE, INV, S0, S1, P, R, joined, pieces, whole_array

from hpcdist.autograd import Tensor
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
            if verb(now[axis], dst[axis]):
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
    assert mode.get_comm_counts() == {"all_to_all": 1}
    assert mode.get_comm_bytes() == {"all_to_all": x.data.nbytes}
    assert_is(y, whole)
    if comm.size == 3 and comm.rank == 2:
        np.testing.assert_array_equal(y.data[:, 0], [6, 13, 20, 27, 34])
    z = y.redistribute(placements=[S0]).redistribute(placements=[R])
    assert_is(z, whole)
    with CommDebugMode() as mode:
        z.local.backward(whole)  # each rank has its own: the gradient is their sum
    assert mode.get_comm_counts() == {"reduce_scatter": 1, "all_to_all": 2}
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
        assert mode.get_comm_counts() == calls
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
