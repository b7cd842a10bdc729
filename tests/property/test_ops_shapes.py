"""Operations on arrays of any shape, dtype and strides against plain NumPy, and their gradients against differences."""

import itertools

import numpy as np
import pytest
from array_drawing import SETTINGS, agree, along, arrays, double, extents, one, reductions, shapes, solid_shapes
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from hpcdist.autograd import OPS, Tensor, apply

NORMS = ("backward", "ortho", "forward")


# ---------------------------------------------------------------- element by element
@SETTINGS
@given(one(), st.sampled_from(["abs", "sin", "cos"]))
def test_functions_of_one_argument(a, name):
    agree(name, [a], getattr(np, name)(double(a)))


@SETTINGS
@given(one(), st.sampled_from([(-0.355, 0.395), (None, 0.145), (0.27, None), (0.52, -0.48)]))
def test_clamp(a, ends):
    agree("clamp", [a], np.clip(double(a), *ends), min=ends[0], max=ends[1])


@SETTINGS
@given(
    mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=4),
    st.data(),
    st.sampled_from(["maximum", "minimum", "complex"]),
)
def test_functions_of_two_arguments(pair, data, name):
    dtype = data.draw(st.sampled_from(["f4", "f8"]))
    a, b = (data.draw(arrays(shape, dtype)) for shape in pair.input_shapes)
    b = b + a.dtype.type(1 / 3)  # never near an element of a
    plain = (lambda x, y: x + 1j * y) if name == "complex" else getattr(np, name)
    of_result = {"f4": "c8", "f8": "c16"}[dtype] if name == "complex" else dtype
    agree(name, [a, b], plain(double(a), double(b)), dtype=of_result)


# ---------------------------------------------------------------- along dimensions
@SETTINGS
@given(reductions(solid_shapes), st.sampled_from(["max", "min"]))
def test_extremes(case, name):
    a, dim, keepdim = case
    gone = tuple(range(a.ndim)) if dim is None else tuple(sorted(dim))
    values = getattr(np, name)(double(a), axis=gone, keepdims=keepdim)
    found = np.asarray(apply(OPS[name], Tensor(a), dim=dim, keepdim=True)[1].data)
    where = np.unravel_index(found.ravel(), [a.shape[d] for d in gone]) if gone else ()
    kept = np.indices(found.shape).reshape(a.ndim, -1)
    place = [where[gone.index(d)] if d in gone else kept[d] for d in range(a.ndim)]
    np.testing.assert_array_equal(a[tuple(place)].ravel(), np.ravel(values))
    agree(name, [a], (values, found.reshape(values.shape)), dim=dim, keepdim=keepdim)


@SETTINGS
@given(reductions(shapes), st.sampled_from(["max", "min"]))
def test_no_elements_have_no_extremes(case, name):
    a, dim, keepdim = case
    count = np.prod([a.shape[d] for d in (range(a.ndim) if dim is None else dim)], dtype=int)
    if count:
        assert apply(OPS[name], Tensor(a), dim=dim, keepdim=True)[0].ndim == a.ndim
    else:
        with pytest.raises(ValueError, match=f"{name}: the {name}imum of no elements"):
            apply(OPS[name], Tensor(a), dim=dim, keepdim=keepdim)


@SETTINGS
@given(reductions(), st.sampled_from(["var", "std"]), st.sampled_from([0, 1]))
def test_variance(case, name, correction):
    a, dim, keepdim = case
    gone = tuple(range(a.ndim)) if dim is None else dim
    count = np.prod([a.shape[d] for d in gone], dtype=int)
    attrs = {"dim": dim, "correction": correction, "keepdim": keepdim}
    if count <= correction:
        with pytest.raises(ValueError, match=f"{name}: {count} elements less a correction of {correction}"):
            apply(OPS[name], Tensor(a), **attrs)
    elif count > 1 or name == "var":  # the root has no slope at the variance of one element
        agree(name, [a], getattr(np, name)(double(a), axis=gone, ddof=correction, keepdims=keepdim), **attrs)


@SETTINGS
@given(reductions(), st.sampled_from([0.5, 1, 2, 3.5, np.inf]))
def test_norm(case, p):
    a, dim, keepdim = case
    gone = tuple(range(a.ndim)) if dim is None else dim
    size = np.abs(double(a))
    if p == np.inf:
        expected = size.max(axis=gone, keepdims=keepdim, initial=0)
    else:
        expected = (size**p).sum(axis=gone, keepdims=keepdim) ** (1 / p)
    agree("norm", [a], expected, p=p, dim=dim, keepdim=keepdim)


@SETTINGS
@given(along())
def test_cumsum(case):
    a, dim = case
    agree("cumsum", [a], double(a).cumsum(dim), dim=dim)


# ---------------------------------------------------------------- order
@SETTINGS
@given(along(), st.booleans())
def test_sort(case, descending):
    a, dim = case
    index = np.argsort(-a if descending else a, axis=dim, kind="stable")
    agree("sort", [a], (np.take_along_axis(a, index, dim), index), dim=dim, descending=descending)


@SETTINGS
@given(along(), st.booleans(), st.integers(0, 4))
def test_topk(case, largest, k):
    a, dim = case
    k = min(k, a.shape[dim])
    index = np.argsort(-a if largest else a, axis=dim, kind="stable").take(range(k), axis=dim)
    agree("topk", [a], (np.take_along_axis(a, index, dim), index), k=k, dim=dim, largest=largest)


@SETTINGS
@given(st.lists(st.integers(0, 3), max_size=12), st.booleans())
def test_equal_elements_keep_their_order(values, descending):
    found = apply(OPS["sort"], Tensor(np.array(values, np.float32)), dim=0, descending=descending)[1].data
    sign = -1 if descending else 1
    assert found.tolist() == sorted(range(len(values)), key=lambda i: (sign * values[i], i))


# ---------------------------------------------------------------- picking
@SETTINGS
@given(along(solid_shapes), st.data())
def test_take_along_dim(case, data):
    a, dim = case
    one_or = st.integers(0, 1) if 1 in a.shape else st.just(0)
    shape = [1 if data.draw(one_or) and d != dim % a.ndim else n for d, n in enumerate(a.shape)]
    shape[dim] = data.draw(st.integers(0, 5))
    index = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, a.shape[dim], shape)
    expected = np.take_along_axis(double(a), index, dim)
    agree("take_along_dim", [a, index], expected, dim=dim)


@SETTINGS
@given(along(solid_shapes), st.data())
def test_scatter_add(case, data):
    a, dim = case
    dim %= a.ndim
    shape = tuple(data.draw(st.integers(0, n + (d == dim))) for d, n in enumerate(a.shape))
    index = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, a.shape[dim], shape)
    src = data.draw(arrays(shape, a.dtype))
    expected = double(a)
    for place in itertools.product(*map(range, shape)):
        expected[(*place[:dim], index[place], *place[dim + 1 :])] += src[place]
    agree("scatter_add", [a, index, src], expected, dim=dim)


@SETTINGS
@given(along(solid_shapes), st.lists(st.integers(0, 99), max_size=6))
def test_index_select(case, numbers):
    a, dim = case
    index = np.array(numbers, np.int64) % a.shape[dim]
    agree("index_select", [a, index], double(a).take(index, dim), dim=dim)


# ---------------------------------------------------------------- arrangement
@SETTINGS
@given(one(), st.integers(1, 3), st.data())
def test_stack(a, count, data):
    dim = data.draw(st.integers(-a.ndim - 1, a.ndim))
    parts = [a, *(data.draw(arrays(a.shape, a.dtype)) for _ in range(count - 1))]
    agree("stack", parts, np.stack([double(x) for x in parts], dim), dim=dim)


@SETTINGS
@given(shapes, st.data())
def test_broadcast_to(shape, data):
    start = data.draw(st.integers(0, len(shape)))
    own = tuple(1 if data.draw(st.booleans()) else n for n in shape[start:])
    a = data.draw(one(st.just(own)))
    agree("broadcast_to", [a], np.broadcast_to(double(a), shape), shape=shape)


@SETTINGS
@given(one(), st.data())
def test_pad_with_a_constant(a, data):
    widths = tuple((data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))) for _ in a.shape)
    value = data.draw(st.sampled_from([0.0, -1.5]))
    expected = np.pad(double(a), widths, constant_values=value) if a.ndim else double(a)
    agree("pad", [a], expected, widths=widths, mode="constant", value=value)


@SETTINGS
@given(one(), st.data())
def test_negative_widths_cut_off(a, data):
    widths = tuple((-data.draw(st.integers(0, n)), 0) for n in a.shape)
    expected = double(a)[tuple(slice(-before, None) for before, _ in widths)]
    agree("pad", [a], expected, widths=widths, mode="constant", value=0.0)


@SETTINGS
@given(
    one(solid_shapes), st.sampled_from([("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")]), st.data()
)
def test_pad_with_elements(a, modes, data):
    limit = {"reflect": -1, "replicate": 3, "circular": 0}[modes[0]]
    widths = tuple(tuple(data.draw(st.integers(0, n + limit)) for _ in range(2)) for n in a.shape)
    agree("pad", [a], np.pad(double(a), widths, modes[1]), widths=widths, mode=modes[0], value=0.0)


# ---------------------------------------------------------------- einsum
@st.composite
def equations(draw):
    """Draw an equation without ``...``, and shapes that fit it: letters may repeat, vanish, or be stretched."""
    size = {c: draw(extents) for c in "ijkl"}
    terms = draw(st.lists(st.text("ijkl", max_size=3), min_size=1, max_size=3))
    result = draw(st.lists(st.sampled_from(sorted(set("".join(terms))) or ["i"]), unique=True)) if any(terms) else []
    return f"{','.join(terms)}->{''.join(result)}", [tuple(size[c] for c in t) for t in terms]


@SETTINGS
@given(equations(), st.sampled_from(["f8", "f4", "c16"]), st.data())
def test_einsum(case, dtype, data):
    equation, of_operands = case
    operands = [data.draw(arrays(shape, dtype)) for shape in of_operands]
    agree("einsum", operands, np.einsum(equation, *map(double, operands)), equation=equation)


@SETTINGS
@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=2, min_side=0, max_side=3), st.data())
def test_einsum_of_batches(pair, data):
    a = data.draw(arrays((*pair.input_shapes[0], 2, 3), "f8"))
    b = data.draw(arrays((*pair.input_shapes[1], 3, 4), "f8"))
    agree("einsum", [a, b], a @ b, equation="...ij,...jk->...ik")


# ---------------------------------------------------------------- Fourier transforms
@st.composite
def transforms(draw, dtype):
    a = draw(one(shapes.filter(len), st.sampled_from(dtype)))
    dims = draw(st.permutations(range(a.ndim)))[: draw(st.integers(1, a.ndim))]
    n = tuple(draw(st.integers(1, 7)) for _ in dims)
    return a, n, tuple(dims), draw(st.sampled_from(NORMS))


SPECTRUM = {"f4": "c8", "f8": "c16"}


@SETTINGS
@given(transforms(["f4", "f8"]))
def test_rfft(case):
    a, n, dim, norm = case
    expected = np.fft.rfftn(fitted(double(a), n, dim), n, dim, norm)
    agree("rfft", [a], expected, dtype=SPECTRUM[a.dtype.str[1:]], n=n, dim=dim, norm=norm)


@SETTINGS
@given(transforms(["c8", "c16"]))
def test_irfft(case):
    z, n, dim, norm = case
    expected = np.fft.irfftn(fitted(double(z), (*n[:-1], n[-1] // 2 + 1), dim), n, dim, norm)
    agree("irfft", [z], expected, dtype={v: k for k, v in SPECTRUM.items()}[z.dtype.str[1:]], n=n, dim=dim, norm=norm)


def fitted(a, n, dim):
    """Cut, or fill up with zeros: NumPy refuses dimensions without elements."""
    for extent, d in zip(n, dim, strict=True):
        a = a.take(range(min(extent, a.shape[d])), axis=d)
        a = np.pad(a, [(0, extent - n if i == d else 0) for i, n in enumerate(a.shape)])
    return a
