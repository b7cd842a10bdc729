"""How rows of arithmetic, arrangement and products are checked on arrays of any shape, dtype and strides."""

import math

import numpy as np
from array_drawing import Rows, agree, along, double, like, one, real_dtypes, reductions, rows_of, shapes
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from hpcdist.autograd import OPS, Tensor, apply

ROWS = Rows()
wide_dtypes = st.sampled_from(["f4", "f8"])


# ---------------------------------------------------------------- element by element
def logistic(x):
    return 1 / (1 + np.exp(-x))


def normal_cdf(x):
    return (1 + np.vectorize(math.erf, otypes=[float])(x / 2**0.5)) / 2


PLAIN = {
    "erf": np.vectorize(math.erf, otypes=[float]),
    "exp": np.exp,
    "neg": np.negative,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": logistic,
    "silu": lambda x: x * logistic(x),
    "tanh": np.tanh,
}


@ROWS.add(*PLAIN)
def function(draw, name):
    a = draw(one())
    agree(name, [a], PLAIN[name](double(a)))


@ROWS.add("log", "sqrt")
def function_of_positive_numbers(draw, name):
    a = draw(one(low=0.5))
    agree(name, [a], getattr(np, name)(double(a)))


@ROWS.add("pow")
def power(draw, name):
    exponent = draw(st.sampled_from([0, 1, 2, 3, -1, 0.5, 2.5]))
    a = draw(one(dtype=wide_dtypes, low=0.5))
    agree(name, [a], double(a) ** exponent, exponent=exponent)


@ROWS.add("gelu")
def gelu(draw, name):
    a, tanh = draw(one()), draw(st.booleans())
    x = double(a)
    gate = logistic(2 * (2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)) if tanh else normal_cdf(x)
    agree(name, [a], x * gate, tanh=tanh)


@ROWS.add("cast")
def cast(draw, name):
    a, dtype = draw(one()), np.dtype(draw(real_dtypes))
    result = apply(OPS[name], Tensor(a), dtype=dtype)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.data, a.astype(dtype))


BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def pair_of_shapes(draw, count=2):
    return draw(mutually_broadcastable_shapes(num_shapes=count, max_dims=3, min_side=0, max_side=4)).input_shapes


@ROWS.add(*BINARY)
def arithmetic(draw, name):
    a_shape, b_shape = pair_of_shapes(draw)
    a = draw(one(st.just(a_shape)))
    b = like(draw, a, *b_shape, low=0.5)
    agree(name, [a, b], BINARY[name](double(a), double(b)))


COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
COMPARISONS["ge"] = np.greater_equal


@ROWS.add(*COMPARISONS)
def comparison(draw, name):
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    a, b = (
        rng.integers(0, 3, shape).astype(draw(st.sampled_from(["f4", "f8", "i8"]))) for shape in pair_of_shapes(draw)
    )
    result = apply(OPS[name], Tensor(a), Tensor(b))
    assert result.dtype == bool
    np.testing.assert_array_equal(result.data, COMPARISONS[name](a, b))


@ROWS.add("where")
def where(draw, name):
    of_mask, of_a, of_b = pair_of_shapes(draw, 3)
    mask = np.asarray(np.random.default_rng(draw(st.integers(0, 99))).random(of_mask) < 0.5)
    a = draw(one(st.just(of_a)))
    b = like(draw, a, *of_b)
    agree(name, [mask, a, b], np.where(mask, double(a), double(b)), dtype=a.dtype)


# ---------------------------------------------------------------- complex numbers
PARTS = {"conj": np.conj, "real": np.real, "imag": np.imag}


@ROWS.add(*PARTS)
def part(draw, name):
    z = draw(one(dtype=st.sampled_from(["c8", "c16"])))
    agree(name, [z], PARTS[name](double(z)), dtype=z.dtype if name == "conj" else z.real.dtype)


@ROWS.add("view_as_real")
def view_as_real(draw, name):
    z = draw(one(dtype=st.sampled_from(["c8", "c16"])))
    agree(name, [z], np.stack([double(z).real, double(z).imag], -1), dtype=z.real.dtype)


@ROWS.add("view_as_complex")
def view_as_complex(draw, name):
    a = draw(one(shapes.map(lambda shape: (*shape, 2)), wide_dtypes))
    expected = double(a)[..., 0] + 1j * double(a)[..., 1]
    agree(name, [a], expected, dtype=np.result_type(a.dtype, "c8"))


# ---------------------------------------------------------------- reductions
@ROWS.add("sum")
def total(draw, name):
    a, dim, keepdim = draw(reductions())
    agree(name, [a], double(a).sum(axis=dim, keepdims=keepdim), dim=dim, keepdim=keepdim)


@ROWS.add("mean")
def mean(draw, name):
    a, dim, keepdim = draw(reductions(shapes.filter(lambda shape: 0 not in shape)))
    agree(name, [a], double(a).mean(axis=dim, keepdims=keepdim), dim=dim, keepdim=keepdim)


@ROWS.add("softmax", "log_softmax")
def softmax(draw, name):
    a, dim = draw(along())
    x = double(a) - double(a).max(axis=dim, keepdims=True, initial=0)
    total = np.exp(x).sum(axis=dim, keepdims=True)
    logs = x - np.log(np.where(total, total, 1))  # 0: of no elements
    agree(name, [a], np.exp(logs) if name == "softmax" else logs, dim=dim)


# ---------------------------------------------------------------- arrangement
@ROWS.add("reshape")
def reshape(draw, name):
    a = draw(one())
    shape = draw(st.sampled_from([(a.size,), (*a.shape, 1), (1, *a.shape), a.shape[::-1]]))
    agree(name, [a], double(a).reshape(shape), shape=shape)


@ROWS.add("transpose")
def transpose(draw, name):
    a = draw(one())
    dims = tuple(d - draw(st.sampled_from([0, a.ndim])) for d in draw(st.permutations(range(a.ndim))))
    agree(name, [a], double(a).transpose(dims), dims=dims)


@st.composite
def indices(draw, shape):
    """Draw what picks from an array of ``shape``: integers, slices, None, ``...``, integers or bool in arrays."""
    slices = st.builds(slice, *[st.none() | st.integers(-5, 5)] * 2, st.sampled_from([None, 1, 2, -1, -2]))
    parts = [draw(slices | (st.integers(-n, n - 1) if n else slices)) for n in shape]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(["basic", "integers", "bool", "mask"]))
    if kind == "mask":
        return rng.random(shape) < 0.5
    if kind != "basic" and shape:
        at, count = draw(st.integers(0, len(shape) - 1)), draw(st.integers(0, 3))
        some = rng.integers(0, shape[at], count) if shape[at] else np.zeros(0, int)
        parts[at] = some if kind == "integers" else rng.random(shape[at]) < 0.5
    stop = draw(st.integers(0, len(parts)))
    return tuple(draw(st.sampled_from([parts, parts[:stop], [*parts[:stop], ...], [None, *parts]])))


@ROWS.add("getitem")
def getitem(draw, name):
    a = draw(one())
    index = draw(indices(a.shape))
    agree(name, [a], double(a)[index], index=index)


@ROWS.add("put")
def put(draw, name):
    shape = draw(shapes)
    index = draw(indices(shape))
    a = draw(one(st.just(np.empty(shape)[index].shape), wide_dtypes))
    expected = np.zeros(shape)
    np.add.at(expected, index, a)
    agree(name, [a], expected, index=index, shape=shape)


@ROWS.add("cat")
def cat(draw, name):
    a, dim = draw(along())
    others = []
    for _ in range(draw(st.integers(0, 2))):
        shape = list(a.shape)
        shape[dim] = draw(st.integers(0, 3))
        others.append(like(draw, a, *shape))
    agree(name, [a, *others], np.concatenate([double(x) for x in (a, *others)], dim), dim=dim)


@ROWS.add("split")
def split(draw, name):
    a, dim = draw(along())
    ends = sorted(draw(st.lists(st.integers(0, a.shape[dim]), max_size=3)))
    sizes = tuple(np.diff([0, *ends, a.shape[dim]]).tolist())
    agree(name, [a], tuple(np.split(double(a), ends, dim)), sizes=sizes, dim=dim)


@ROWS.add("embedding")
def embedding(draw, name):
    table = draw(one(st.tuples(st.integers(1, 4), st.integers(0, 4))))
    tokens = np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(table), draw(shapes))
    agree(name, [np.asarray(tokens), table], double(table)[tokens], dtype=table.dtype)


@ROWS.add("ungroup")
def ungroup(draw, name):
    kv_heads, group, head_dim = (draw(st.integers(1, 3)) for _ in range(3))
    a = draw(one(shapes.map(lambda shape: (*shape[:2], kv_heads * (group + 2) * head_dim))))
    parts = double(a).reshape(*a.shape[:-1], kv_heads, group + 2, head_dim)
    each = [
        [parts[..., k, q, :], parts[..., k, -2, :], parts[..., k, -1, :]] for k in range(kv_heads) for q in range(group)
    ]
    expected = np.concatenate([x for head in each for x in head], -1)
    agree(name, [a], expected, num_heads=kv_heads * group, num_kv_heads=kv_heads)


# ---------------------------------------------------------------- products
@ROWS.add("linear")
def linear(draw, name):
    x = rows_of(draw, dtype=wide_dtypes)
    x = x if draw(st.booleans()) or not len(x) else x[0]
    w = like(draw, x, draw(st.integers(0, 4)), x.shape[-1])
    bias = [like(draw, x, len(w))] if draw(st.booleans()) else []
    agree(name, [x, w, *bias], double(x) @ double(w).T + sum(map(double, bias)))


@ROWS.add("matmul")
def matmul(draw, name):
    (of_a, of_b), (m, k, n) = pair_of_shapes(draw), (draw(st.integers(0, 4)) for _ in range(3))
    a = draw(one(st.just((*of_a, m, k)), wide_dtypes))
    b = like(draw, a, *of_b, k, n)
    agree(name, [a, b], double(a) @ double(b))
