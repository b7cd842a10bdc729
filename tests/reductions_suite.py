"""Reductions over dimensions that ranks hold in parts: bodies of tests that compare with the whole on one rank."""

import math
from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from hpcdist.autograd import Tensor, apply, functions
from hpcdist.autograd.op import OPS
from hpcdist.comm.mesh import init_device_mesh
from hpcdist.dtensor import DTensor, Invariant, Layout, Partial, Replicate, Shard
from hpcdist.dtensor.debug import CommDebugMode

INV, P, R, S0, S1, S2 = Invariant(), Partial(), Replicate(), Shard(0), Shard(1), Shard(2)
UNITS, SECTIONS = Shard(1, unit=2), Shard(1, sections=(2, 4))
TOLERANCE = {"float64": 1e-13, "complex128": 1e-13, "float32": 2e-6, "float16": 3e-3, "bfloat16": 3e-2}


def op(name, **attrs):
    """Return a function that runs the operation ``name``."""
    return lambda *x: apply(OPS[name], *x, **attrs)


# name: (function, extents of inputs after the first by those of the first, messages forward, messages backward)
def along(dim, keepdim):
    """Return functions that reduce along ``dim``, with the collectives of one axis, forward and backward."""
    at = {"dim": dim, "keepdim": keepdim}
    return {
        "mean": (op("mean", **at), {}, {}),
        "var": (op("var", correction=1, **at), {"all_gather": 1}, {}),
        "var, biased": (op("var", correction=0, **at), {"all_gather": 1}, {}),
        "std": (op("std", correction=1, **at), {"all_gather": 1}, {}),
        "norm": (op("norm", p=2, **at), {"all_gather": 1}, {}),
        "norm 1": (op("norm", p=1, **at), {"all_gather": 1}, {}),
        "norm 3": (op("norm", p=3.0, **at), {"all_gather": 1}, {}),
        "norm 0.5": (op("norm", p=0.5, **at), {"all_gather": 1}, {}),
        "norm inf": (op("norm", p=math.inf, **at), {"all_gather": 1}, {}),
        "max": (op("max", **at), {"all_gather": 1}, {}),
        "min": (op("min", **at), {"all_gather": 1}, {}),
    }


def kept(dim):
    """Return functions of one array whose result has its shape."""
    return {
        "softmax": (op("softmax", dim=dim), {"all_gather": 1}, {"all_reduce": 1}),
        "log_softmax": (op("log_softmax", dim=dim), {"all_gather": 1}, {"all_reduce": 1}),
        "cumsum": (op("cumsum", dim=dim), {"all_gather": 1}, {"reduce_scatter": 1}),
    }


NORMS = {
    "layer_norm": (op("layer_norm", eps=1e-5), 1, 2, {"all_gather": 1}, {"all_reduce": 1}),
    "rms_norm": (op("rms_norm", eps=1e-5), 1, 1, {"all_reduce": 1}, {"all_reduce": 1}),
    "add_layer_norm": (op("add_layer_norm", eps=1e-5), 2, 2, {"all_gather": 1}, {"all_reduce": 1}),
    "add_rms_norm": (op("add_rms_norm", eps=1e-5), 2, 1, {"all_reduce": 1}, {"all_reduce": 1}),
}


def mesh_of(comm, *shape):
    """Return a mesh of ``shape`` of the first ranks."""
    return init_device_mesh(shape or (comm.size,), tuple("xyz"[: max(len(shape), 1)]), comm)


def numbers(shape, dtype=np.float64, seed=0):
    """Return values of which some are equal, so that there are ties."""
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(size=shape) * 2, 1)
    x = x + 1j * np.round(rng.normal(size=shape) * 2, 1) if np.dtype(dtype).kind == "c" else x
    return x.astype(dtype)


def placed(mesh, whole, placements, *, grad=True, order=None):
    """Return what this rank holds of an array, cut by hand."""
    layout = Layout.of(mesh, placements, whole.shape, order)
    local = whole[np.ix_(*[layout.indices_at(d, layout.coordinate) for d in range(whole.ndim)])]
    first = all(c == 0 for c, p in zip(layout.coordinate, layout.placements, strict=True) if isinstance(p, Partial))
    local = local.copy() if first else np.zeros_like(local)
    return DTensor(Tensor(local, grad and whole.dtype.kind in "fcV"), layout)


def outputs_of(result):
    """Return the outputs of an operation as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def near(got, expected, scale=1.0):
    """Compare, as exactly as the dtype allows."""
    assert got.dtype == expected.dtype
    tolerance = TOLERANCE.get(str(expected.dtype), 0) * scale
    kind = np.complex128 if expected.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(kind), expected.astype(kind), rtol=tolerance, atol=tolerance)


def cotangents(outputs):
    """Return an array like each output that has a gradient, None for others."""
    return [numbers(y.shape, y.dtype, seed=40 + i) if y.dtype.kind in "fcV" else None for i, y in enumerate(outputs)]


def whole_answer(fn, arrays):
    """Return outputs, gradients and cotangents on one rank."""
    inputs = [Tensor(a, a.dtype.kind in "fcV") for a in arrays]
    outputs = outputs_of(fn(*inputs))
    seeds = cotangents(outputs)
    for i, (y, seed) in enumerate(zip(outputs, seeds, strict=True)):
        if seed is not None and y.requires_grad:
            y.backward(seed, retain_graph=i + 1 < len(outputs))
    return [y.data for y in outputs], [x.grad for x in inputs], seeds


def messages(debug):
    """Return the number of calls a verb, without those that only check."""
    return {str(verb): n for verb, n in debug.get_comm_counts().items() if n and verb in VERBS}


VERBS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def check_messages(mesh, debug, expected):
    """Compare collectives with those of axes of several ranks; on an axis of one rank there are none."""
    if min(mesh.shape) > 1:
        assert messages(debug) == expected
    else:
        assert Counter(messages(debug)) <= Counter(expected if mesh.size() > 1 else {})


def check(mesh, fn, arrays, placements, *, forward=None, backward=None, layout=None, scale=1.0):
    """Values, gradients, layout and number of collectives of ``fn``, which gets arrays placed as ``placements``."""
    values, gradients, seeds = whole_answer(fn, arrays)
    inputs = [placed(mesh, a, p) for a, p in zip(arrays, placements, strict=True)]
    with CommDebugMode() as debug:
        outputs = outputs_of(fn(*inputs))
    if forward is not None:
        check_messages(mesh, debug, forward)
    for y, value in zip(outputs, values, strict=True):
        near(y.full_tensor().data, value, scale)
    if layout is not None:
        assert outputs[0].placements == tuple(layout)
    for i, (y, seed) in enumerate(zip(outputs, seeds, strict=True)):
        if seed is not None and y.requires_grad:
            with CommDebugMode() as debug:
                y.backward(seed, retain_graph=i + 1 < len(outputs))
    if backward is not None:
        check_messages(mesh, debug, backward)
    for x, g in zip(inputs, gradients, strict=True):
        assert (x.grad is None) == (g is None)
        if g is not None:
            near(x.gradient().full_tensor().data, g, scale * 4)
    return outputs


SHAPES = [(5, 6, 3), (1, 6, 2), (4, 6, 1), (3, 8, 2)]


def check_reductions(comm, name, dim, keepdim):
    """One axis cuts the reduced dimension: even, uneven and empty shards."""
    mesh = mesh_of(comm)
    for shape in SHAPES:
        fn, forward, backward = along(dim, keepdim)[name]
        if name in ("var", "std") and shape[0] == 1 and dim in (0, None):
            continue
        cut = Shard(0 if dim is None else dim if isinstance(dim, int) else dim[0])
        result = P if name == "mean" else INV
        check(mesh, fn, [numbers(shape)], [[cut]], forward=forward, backward=backward, layout=[result])


def check_kept(comm, name, dim):
    """The same for functions whose result has the shape of the input."""
    mesh = mesh_of(comm)
    for shape in SHAPES:
        fn, forward, backward = kept(dim)[name]
        cut = Shard(dim)
        check(mesh, fn, [numbers(shape)], [[cut]], forward=forward, backward=backward, layout=[cut])


def norm_arrays(shape, streams, weights, dtype=np.float64):
    return [numbers(shape, dtype, seed=i) for i in range(streams)] + [
        numbers(shape[-1:], dtype, seed=9 + i) for i in range(weights)
    ]


def check_norms(comm, name):
    """Norms of layers whose features are cut, weights alike or whole."""
    mesh = mesh_of(comm)
    fn, streams, weights, forward, backward = NORMS[name]
    for shape in [(4, 6), (2, 3, 7), (3, 1), (5, 8)]:
        arrays = norm_arrays(shape, streams, weights)
        last = Shard(len(shape) - 1)
        places = [[last]] * streams + [[S0]] * weights
        check(mesh, fn, arrays, places, forward=forward, backward=backward, layout=[last], scale=40)
        check(mesh, fn, arrays, [[last]] * streams + [[INV]] * weights, forward=forward, layout=[last], scale=40)


def check_two_axes(comm, first, second, order):
    """A mesh of two axes, of which both or one cut what is reduced."""
    mesh = mesh_of(comm, *(2, comm.size // 2))
    x = numbers((5, 6, 4))
    cases = {**along((0, 1), True), **kept(1)}
    for name, (fn, *_) in cases.items():
        if name == "cumsum" and SECTIONS in (first, second):
            continue
        values, gradients, seeds = whole_answer(fn, [x])
        inputs = [placed(mesh, x, [first, second], order=order)]
        y = outputs_of(fn(*inputs))
        for mine, value in zip(y, values, strict=True):
            near(mine.full_tensor().data, value)
        y[0].backward(seeds[0])
        near(inputs[0].gradient().full_tensor().data, gradients[0], 4)
    for name, (fn, streams, weights, *_) in NORMS.items():
        last = [p if not isinstance(p, Shard) or p.dim != 1 else Shard(2) for p in (first, second)]
        like = [Shard(0) if p == Shard(2) else INV for p in last]
        arrays = norm_arrays((5, 6, 4), streams, weights)
        check(mesh, fn, arrays, [last] * streams + [like] * weights, scale=40), name


def check_dtypes(comm, dtype):
    """Half precision is computed in float32; complex values where the operation takes them."""
    mesh, x = mesh_of(comm), numbers((4, 6), dtype)
    cases = {**along(0, False), **kept(0)}
    if np.dtype(dtype).kind == "c":
        cases = {k: v for k, v in cases.items() if k.split()[0].rstrip(",") in ("mean", "var", "std", "norm", "cumsum")}
    for fn, forward, _ in cases.values():
        check(mesh, fn, [x], [[S0]], forward=forward, scale=4)
    if np.dtype(dtype).kind != "c":
        for fn, streams, weights, *_ in NORMS.values():
            arrays = norm_arrays((4, 6), streams, weights, dtype)
            check(mesh, fn, arrays, [[S1]] * streams + [[S0]] * weights, scale=40)


def check_b12(comm):
    """The mean of uneven shards is that of all elements; an empty rank adds nothing, and no NaN."""
    mesh = mesh_of(comm)
    x = placed(mesh, np.arange(12.0).reshape(3, 4), [S0])
    mean = x.mean()
    assert mean.placements == (P,)
    assert mean.item() == 5.5
    mean.backward()
    np.testing.assert_array_equal(x.gradient().full_tensor().data, np.full((3, 4), 1 / 12))
    np.testing.assert_array_equal(x.mean(0).full_tensor().data, [4.0, 5.0, 6.0, 7.0])
    np.testing.assert_allclose(x.var(correction=0).item(), 143 / 12, rtol=1e-14)
    np.testing.assert_allclose(x.softmax(0).sum().item(), 4.0, rtol=1e-14)
    assert placed(mesh, np.arange(4.0).reshape(1, 4), [S0]).mean().item() == 1.5


def check_zero(comm):
    """Where nothing differs from 0 the gradients of lengths and deviations are 0."""
    mesh = mesh_of(comm)
    for name in ("norm", "norm inf", "std", "norm 0.5", "norm 1"):
        check(mesh, along(0, False)[name][0], [np.zeros((5, 3))], [[S0]])


def check_ties(comm):
    """Of equals the first one is found and gets the gradient, also where sections put ranks out of order."""
    mesh = mesh_of(comm)
    x = np.zeros((2, 6))
    x[1, 4] = x[1, 2] = 3.0
    x[0, 5] = -1.0
    for cut in (S1, SECTIONS, UNITS):
        for name in ("max", "min", "norm inf"):
            check(mesh, along(1, False)[name][0], [x], [[cut]])
        for name in ("softmax", "log_softmax"):
            check(mesh, kept(1)[name][0], [x], [[cut]])
    for special in (np.nan, -np.inf, np.inf):
        x[1, 3] = special
        y = placed(mesh, x, [S1])
        for mine, whole in zip(y.max(1), Tensor(x).max(1), strict=True):
            np.testing.assert_array_equal(mine.full_tensor().data, whole.data)
    lowest = placed(mesh, np.full((2, 5), -np.inf), [S1])
    np.testing.assert_array_equal(lowest.argmax(1).full_tensor().data, [0, 0])


def check_integers(comm):
    """Integers and bool have extremes, of any size, and running sums."""
    mesh = mesh_of(comm)
    big = np.array([2**62 + 1, 2**62 + 3, -(2**62) - 1, 5, 2**62 + 3], np.int64)
    for x in (big, big.astype(np.int32), np.array([False, True, False, True, False]), np.arange(5, dtype=np.uint8)):
        for name in ("max", "min"):
            check(mesh, along(0, False)[name][0], [x], [[S0]], forward={"all_gather": 1})
        check(mesh, kept(0)["cumsum"][0], [x], [[S0]])


def check_large(comm):
    """Exponentials do not overflow, and large values keep their digits."""
    mesh = mesh_of(comm)
    for x in (np.array([[1000.0, 999.0, -1000.0, 1000.5, 998.0]], np.float32), 1e4 + numbers((3, 5), np.float32)):
        for name in ("softmax", "log_softmax"):
            check(mesh, kept(1)[name][0], [x], [[S1]])
        if comm.size > 1:
            near(placed(mesh, x, [S1]).var(1).full_tensor().data, functions.var(Tensor(x), 1).data, 5)


def check_partial(comm):
    """A sum that is pending on another axis is finished first, or stays where the operation is linear."""
    mesh = mesh_of(comm, *(2, comm.size // 2))
    x = numbers((5, 4))
    for fn, *_ in {**along(0, False), **kept(0)}.values():
        check(mesh, fn, [x], [[P, S0]])
    with CommDebugMode() as debug:
        y = placed(mesh, x, [P, S0]).mean(0)
    assert (y.placements, messages(debug)) == ((P, P), {})


def check_refusals(comm):
    """What would need all elements raises an error that names the operation, and so does what one axis cuts twice."""
    mesh = mesh_of(comm)
    x, gain = placed(mesh, numbers((6, 6)), [S1]), numbers((6,))
    refused = {
        "sort": lambda: x.sort(1),
        "topk": lambda: x.topk(2, 1),
        "cumsum": lambda: placed(mesh, numbers((2, 6)), [SECTIONS]).cumsum(1),
        "rms_norm": lambda: NORMS["rms_norm"][0](placed(mesh, numbers((6, 6)), [S0]), placed(mesh, gain, [S0])),
        "layer_norm": lambda: NORMS["layer_norm"][0](
            placed(mesh, numbers((6, 6)), [SECTIONS]), *[placed(mesh, gain, [S0])] * 2
        ),
    }
    for name, call in refused.items():
        if comm.size > 1:
            with pytest.raises(ValueError, match=rf"^{name}: what ranks hold does not suffice"):
                call()
    for name, wrong, error in (
        ("mean", np.arange(6), TypeError),
        ("var", np.arange(6), TypeError),
        ("norm", np.arange(6), TypeError),
        ("max", numbers((6,), np.complex128), TypeError),
        ("max", numbers((0,)), ValueError),
        ("mean", numbers((0,)), ValueError),
        ("var", numbers((1,)), ValueError),
        ("softmax", numbers((6,), np.complex128), TypeError),
    ):
        fn = {**along(0, False), **kept(0)}[name][0]
        with pytest.raises(error):
            fn(Tensor(wrong))
        with pytest.raises(error):
            fn(placed(mesh, wrong, [S0]))
    with pytest.raises(ValueError, match="expected"):
        NORMS["rms_norm"][0](x, placed(mesh, numbers((3,)), [S0]))


HALVES = (np.float16, ml_dtypes.bfloat16)
