"""Distributed tensors through any layouts, with hypothesis: nothing is lost, and gradients go the transposed way."""

import itertools

import dtensor_suite as suite
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import Invariant, Partial, Replicate, Shard, dual

SETTINGS = settings(deadline=None, max_examples=40)
MESHES = [(1,), (3,), (4,), (2, 2), (3, 1), (2, 3), (2, 1, 2)]
WHOLE = [Replicate(), Invariant(), Partial(), Partial("avg")]


@st.composite
def walks(draw):
    """A mesh, the shape of an array, and layouts that it takes one after the other."""
    mesh_shape = draw(st.sampled_from(MESHES))
    shape = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple))
    placement = st.one_of(st.integers(0, len(shape) - 1).map(Shard), st.sampled_from(WHOLE))
    order = st.permutations(range(len(mesh_shape))).map(tuple)
    layout = st.tuples(st.tuples(*[placement] * len(mesh_shape)), order)
    return mesh_shape, shape, draw(st.lists(layout, min_size=2, max_size=4))


@SETTINGS
@given(walks())
def test_any_layouts_one_after_the_other(walk):
    mesh_shape, shape, layouts = walk
    rng = np.random.default_rng(0)
    whole, upstream = rng.integers(-50, 50, shape) * 720.0, rng.integers(-50, 50, shape) * 720.0
    (first, order), last = layouts[0], layouts[-1]
    start = [Invariant() if isinstance(p, Partial) else p for p in first]

    def main(comm):
        mesh = init_device_mesh(mesh_shape, ("a", "b", "c")[: len(mesh_shape)], comm)
        x = suite.placed(whole, mesh, start, order, requires_grad=True)
        y = x
        for placements, order_ in layouts:
            y = y.redistribute(placements=placements, order=order_)
        suite.assert_is(y, whole)
        settled = [Invariant() if isinstance(p, Partial) else p for p in last[0]]
        z = y.redistribute(placements=settled)
        z.local.backward(suite.placed(upstream, mesh, [dual(p) for p in settled], z.layout.order).data)
        suite.assert_is(x.gradient(), upstream)

    run(int(np.prod(mesh_shape)), main)
    assert all(len(a) == len(b) for a, b in itertools.pairwise([layout for layout, _ in layouts]))
