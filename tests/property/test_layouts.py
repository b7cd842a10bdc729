"""Any layout to any layout and back: moves on meshes of thread ranks, with hypothesis."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.comm.local import run
from hpcdist.comm.mesh import init_device_mesh
from hpcdist.dtensor import Invariant, Partial, Replicate, Shard, chunk_range, chunk_sizes, dual, local_shape, move

SETTINGS = settings(deadline=None, max_examples=60)

shapes = st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple)


WHOLE = st.sampled_from([Replicate(), Invariant(), Partial(), Partial("avg")])


def placements(shape):
    """Plain shards, which fit whatever other axes leave of the dimension, and the rest."""
    return st.one_of(st.integers(-len(shape), len(shape) - 1).map(Shard), WHOLE)


@st.composite
def cuts(draw, shape):
    """Shards of up to three sections, each with a unit that divides it."""
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    ends = sorted(draw(st.lists(st.integers(0, shape[dim]), max_size=2)))
    sections = tuple(stop - start for start, stop in itertools.pairwise([0, *ends, shape[dim]]))
    units = tuple(draw(st.sampled_from([u for u in range(1, 8) if extent % u == 0])) for extent in sections)
    return Shard(dim, units, sections) if ends else Shard(dim, units[0])


def walks(axes):
    """Shape of an array, and layouts it takes one after the other: the first axis cuts what it likes."""
    layout = lambda shape: st.tuples(placements(shape) | cuts(shape), *[placements(shape)] * (axes - 1))  # noqa: E731
    return shapes.flatmap(lambda shape: st.tuples(st.just(shape), st.lists(layout(shape), min_size=1, max_size=4)))


def place(x, layout, mesh):
    """Take an array that is the same everywhere to ``layout``, the first axis first."""
    for axis, placement in enumerate(layout):
        x = move(x, Invariant(), placement, mesh.get_group(axis), x.shape)
    return x


def collect(x, layout, mesh, shape):
    """Undo :func:`place`, the last axis first."""
    seen = [shape]
    for axis, placement in enumerate(layout):
        seen.append(local_shape(seen[-1], placement, mesh.size(axis), mesh.get_local_rank(axis)))
    assert x.shape == seen[-1]
    for axis in reversed(range(mesh.ndim)):
        x = move(x, layout[axis], Invariant(), mesh.get_group(axis), seen[axis])
    return x


@SETTINGS
@given(walks(1), st.integers(1, 4))
def test_moves_on_one_axis_lose_nothing(walk, size):
    shape, layouts = walk
    whole = np.random.default_rng(0).integers(-50, 50, shape).astype(float)

    def main(comm):
        x, now = whole, Invariant()
        for (placement,) in layouts:
            x, now = move(x, now, placement, comm, shape), placement
        return move(x, now, Invariant(), comm, shape)

    for result in run(size, main):
        np.testing.assert_allclose(result, whole, rtol=1e-13)


@SETTINGS
@given(walks(2), st.sampled_from([(2, 2), (3, 1), (1, 3), (2, 1)]))
def test_layouts_on_two_axes_lose_nothing(walk, mesh_shape):
    shape, layouts = walk
    whole = np.random.default_rng(0).integers(-50, 50, shape).astype(float)

    def main(comm):
        mesh = init_device_mesh(mesh_shape, ("dp", "tp"), comm)
        x = whole
        for layout in layouts:
            x = collect(place(x, layout, mesh), layout, mesh, shape)
        return x

    for result in run(mesh_shape[0] * mesh_shape[1], main):
        np.testing.assert_allclose(result, whole, rtol=1e-13)


@SETTINGS
@given(walks(1), st.integers(1, 4), st.integers(0, 2**32))
def test_a_chain_of_moves_and_its_transpose(walk, size, seed):
    """<moves(x), g> == <x, transposed moves in reverse(g)>."""
    shape, layouts = walk
    chain = [Shard(0), *[layout[0] for layout in layouts]]

    def main(comm):
        rng = np.random.default_rng(seed)
        x = move(rng.normal(size=shape), Invariant(), chain[0], comm, shape)
        g = move(rng.normal(size=shape), Invariant(), dual(chain[-1]), comm, shape)
        y, back = x, g
        for src, dst in itertools.pairwise(chain):
            y = move(y, src, dst, comm, shape)
        for src, dst in reversed(list(itertools.pairwise(chain))):
            back = move(back, dual(dst), dual(src), comm, shape)
        once = chain[-1] == Invariant()
        return np.vdot(y, g) / (size if once else 1), np.vdot(x, back)

    left, right = np.sum(run(size, main), axis=0)
    np.testing.assert_allclose(left, right, rtol=1e-11, atol=1e-11)


@given(st.integers(0, 50), st.integers(1, 9))
def test_chunks_cover_everything_once(n, size):
    sizes = chunk_sizes(n, size)
    assert sum(sizes) == n
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) == -(-n // size)
    covered = [i for coord in range(size) for i in range(*chunk_range(n, size, coord))]
    assert covered == list(range(n))
