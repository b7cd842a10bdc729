"""Distributed tensors against global NumPy answers: bodies of tests that take a communicator, or a mesh on it."""

import contextlib
import itertools

import numpy as np
import pytest
from move_suite import COLLECTIVE, INV, S0, S1, P, R, joined, pieces, whole_array

from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.dtensor import DTensor, Partial, Shard, dual
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.dtensor.layout import Layout

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
