"""Short programs on distributed tensors against one process: values and gradients, on meshes of one and two axes."""

import numpy as np
from held_parts import advised, compare, finished, gradient, held, leaf, seed
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.autograd.test_ops import draw as draw_like

from hpcdist.autograd import OPS, Tensor, apply, backward
from hpcdist.comm.local import run
from hpcdist.comm.mesh import init_device_mesh
from hpcdist.dtensor import Invariant, Partial, Replicate, Shard

MESHES = [(1,), (2,), (3,), (4,), (2, 2), (3, 1), (1, 3), (2, 1)]
UNARY = {
    "tanh": {},
    "neg": {},
    "sum": {"dim": 0, "keepdim": True},
    "mean": {"dim": -1, "keepdim": True},
    "max": {"dim": -1, "keepdim": True},
    "softmax": {"dim": -1},
    "log_softmax": {"dim": 0},
    "cumsum": {"dim": 0},
    "transpose": {"dims": (1, 0)},
    "min": {"dim": (0, 1), "keepdim": True},
    "var": {"dim": 1, "correction": 0, "keepdim": True},
    "norm": {"dim": 0, "p": 3, "keepdim": True},
    "sort": {"dim": 0, "descending": True},
    "getitem": {"index": (slice(None), slice(None, None, -2))},
    "reshape": {"shape": (1, -1)},
    "pad": {"widths": ((0, 1), (0, 0)), "mode": "constant", "value": 0.5},
}
BINARY = ("add", "sub", "mul", "maximum", "linear", "matmul", "cat")
NEVER_REFUSED = ("tanh", "neg", "transpose")
SETTINGS = settings(deadline=None, max_examples=120)


def layouts(axes):
    """Placements of a matrix, one an axis, and the order in which they cut."""
    kinds = [Invariant(), Replicate(), Shard(0), Shard(1), Shard(0), Shard(1), Partial(), Partial("avg")]
    return st.tuples(st.lists(st.sampled_from(kinds), min_size=axes, max_size=axes), st.permutations(range(axes)))


@st.composite
def programs(draw):
    """A mesh, the extents of two matrices and a row, layouts of these, and what is done: (operation, operands)."""
    mesh = draw(st.sampled_from(MESHES))
    extents = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    placed = [draw(layouts(len(mesh))) for _ in range(3)]
    one = st.tuples(
        st.one_of(st.sampled_from(sorted(UNARY)), st.sampled_from(BINARY)), st.integers(0, 9), st.integers(0, 9)
    )
    move = st.tuples(st.just("redistribute"), st.integers(0, 9), layouts(len(mesh)))
    return mesh, extents, placed, draw(st.lists(st.one_of(one, one, one, move), min_size=3, max_size=6))


def fits(name, a, b):
    """Say whether a binary operation takes operands of these shapes."""
    if name in ("linear", "matmul", "cat"):
        return a[1] == b[0 if name == "matmul" else 1]
    return all(m == n or 1 in (m, n) for m, n in zip(a, b, strict=True))


def play(values, program, call, move):
    """Run a program on ``values``; what does not fit is left out. Return the last value."""
    for name, i, other in program:
        x = values[-1 - i % len(values)]
        if name == "redistribute":
            values.append(move(x, *other))
        elif name in UNARY:
            y = call(name, [x], UNARY[name])
            values.append(y[0] if isinstance(y, tuple) else y)
        elif fitting := [v for v in values if fits(name, x.shape, v.shape)]:
            values.append(call(name, [x, fitting[other % len(fitting)]], {"dim": 0} if name == "cat" else {}))
    return values[-1] if len(values) > 3 else call("tanh", values[:1], {})


def in_one_process(arrays, program):
    leaves = [Tensor(a, requires_grad=True) for a in arrays]
    y = play(list(leaves), program, lambda name, xs, attrs: apply(OPS[name], *xs, **attrs), lambda x, *_: x)
    return y, leaves


def as_told(name, inputs, attrs):
    """Run an operation; where it is refused, with the calls that the refusal names."""
    try:
        return apply(OPS[name], *inputs, **attrs)
    except ValueError as error:
        assert name not in NEVER_REFUSED
        return apply(OPS[name], *advised(name, inputs, str(error)), **attrs)


@SETTINGS
@given(programs())
def test_programs_compute_what_one_process_does(drawn):
    mesh_shape, (rows, columns), placed, program = drawn
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in ((rows, columns), (rows, columns), (1, columns))]

    def main(comm):
        mesh = init_device_mesh(mesh_shape, ("dp", "tp")[: len(mesh_shape)], comm)
        leaves = [leaf(mesh, a, *layout) for a, layout in zip(arrays, placed, strict=True)]
        y = finished(
            play(list(leaves), program, as_told, lambda x, p, order: x.redistribute(placements=p, order=order))
        )
        backward([y.local], [seed(y)])
        return held(y.local.data, y.layout), [gradient(x) for x in leaves]

    ranks = run(int(np.prod(mesh_shape)), main)
    whole, leaves = in_one_process(arrays, program)
    backward([whole], [draw_like(whole.data, 9)])
    compare("output", [[value] for value, _ in ranks], [whole.data])
    compare("gradient", [grads for _, grads in ranks], [x.grad for x in leaves])
