"""How rows of layers and losses are checked on arrays of any shape, dtype and strides."""

import numpy as np
from array_drawing import Rows, agree, arrays, double, like, one, rows_of, shapes
from hypothesis import strategies as st

from hpcdist.autograd import random

ROWS = Rows()
wide_dtypes = st.sampled_from(["f4", "f8"])


def logistic(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def tall(draw, count=2):
    """Draw some extents of which the first may be 0."""
    return (draw(st.integers(0, 3)), *(draw(st.integers(1, 3)) for _ in range(count - 1)))


# ---------------------------------------------------------------- activations
@ROWS.add("swiglu")
def swiglu(draw, name):
    n = draw(st.integers(0, 4))
    z = draw(one(shapes.map(lambda shape: (*shape[:2], 2 * n))))
    gate, up = double(z)[..., :n], double(z)[..., n:]
    agree(name, [z], gate * logistic(gate) * up)


@ROWS.add("dropout")
def dropout(draw, name):
    a, p, key = draw(one()), draw(st.sampled_from([0.0, 0.3, 0.9, 1.0])), (1, 2, 3, draw(st.integers(0, 9)))
    kept = random.uniform(key, a.shape) >= p
    agree(name, [a], double(a) * kept * (0 if p == 1 else 1 / (1 - p)), p=p, key=key)


# ---------------------------------------------------------------- norms
EPS = 1e-2


def normed(x, axis, centre):
    mean = x.mean(axis, keepdims=True) if centre else 0
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis, keepdims=True) + EPS)


@ROWS.add("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
def norm(draw, name):
    x = rows_of(draw, 1, wide_dtypes)
    streams = [x, like(draw, x, *x.shape)] if name.startswith("add") else [x]
    gain, *shift = (like(draw, x, x.shape[-1]) for _ in range(2 if "layer" in name else 1))
    total = sum(map(double, streams))
    y = normed(total, -1, "layer" in name) * gain + sum(map(double, shift))
    agree(name, [*streams, gain, *shift], (total, y) if len(streams) == 2 else y, eps=EPS)


def over_channels(a, x):
    return double(a).reshape(-1, *[1] * (x.ndim - 2))


@ROWS.add("batch_norm")
def batch_norm(draw, name):
    shape = (draw(st.integers(2, 4)), *tall(draw, 1), *draw(st.lists(st.integers(1, 3), max_size=2)))
    x = draw(arrays(shape, draw(wide_dtypes)))
    gain, shift = (like(draw, x, x.shape[1]) for _ in range(2))
    axis = (0, *range(2, x.ndim))
    if not x.size:
        return
    y = normed(double(x), axis, True) * over_channels(gain, x) + over_channels(shift, x)
    agree(name, [x, gain, shift], (y, double(x).mean(axis), double(x).var(axis)), eps=EPS)


@ROWS.add("batch_norm_eval")
def batch_norm_eval(draw, name):
    x = draw(arrays((*tall(draw), *draw(st.lists(st.integers(0, 3), max_size=2))), draw(wide_dtypes)))
    mean, var, gain, shift = (like(draw, x, x.shape[1], low=low) for low in (-1.3, 0.5, -1.3, -1.3))
    y = (double(x) - over_channels(mean, x)) / np.sqrt(over_channels(var, x) + EPS)
    expected = y * over_channels(gain, x) + over_channels(shift, x)
    agree(name, [x, mean, var, gain, shift], expected, eps=EPS)


@ROWS.add("group_norm")
def group_norm(draw, name):
    groups = draw(st.integers(1, 3))
    shape = (draw(st.integers(0, 3)), groups * draw(st.integers(1, 2)), *draw(st.lists(st.integers(1, 3), max_size=2)))
    x = draw(arrays(shape, draw(wide_dtypes)))
    gain, shift = (like(draw, x, x.shape[1]) for _ in range(2))
    y = normed(double(x).reshape(len(x), groups, int(np.prod(shape[1:])) // groups), 2, True).reshape(shape)
    expected = y * over_channels(gain, x) + over_channels(shift, x)
    agree(name, [x, gain, shift], expected, num_groups=groups, eps=EPS)


# ---------------------------------------------------------------- attention
def packed(draw, head_dims):
    """Draw packed q, k, v of (batch, seq, 3 * heads * head_dim), and how many heads."""
    heads = draw(st.integers(1, 2))
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 5)), 3 * heads * draw(head_dims))
    values = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(shape)
    return values.astype(draw(wide_dtypes)), heads


@ROWS.add("attention")
def attention(draw, name):
    (qkv, heads), causal = packed(draw, st.integers(1, 4)), draw(st.booleans())
    batch, seq, width = qkv.shape
    q, k, v = double(qkv).reshape(batch, seq, heads, 3, width // (3 * heads)).transpose(3, 0, 2, 1, 4)
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    weights = np.exp(np.where(np.tri(seq, dtype=bool) | (not causal), scores, -np.inf))
    out = weights / weights.sum(-1, keepdims=True) @ v
    expected = out.transpose(0, 2, 1, 3).reshape(batch, seq, width // 3)
    agree(name, [qkv], expected, num_heads=heads, causal=causal)


@ROWS.add("rotary")
def rotary(draw, name):
    qkv, heads = packed(draw, st.sampled_from([2, 4]))
    batch, seq, width = qkv.shape
    half = width // (6 * heads)
    angle = np.arange(seq)[:, None] * 100.0 ** (-np.arange(half) / half)
    turn = np.exp(1j * angle)[:, None, None, :]
    parts = double(qkv).reshape(batch, seq, heads, 3, 2, half)
    z = parts[..., 0, :] + 1j * parts[..., 1, :]
    z[..., :2, :] *= turn
    expected = np.stack([z.real, z.imag], -2).reshape(qkv.shape)
    agree(name, [qkv], expected, num_heads=heads, base=100.0)


# ---------------------------------------------------------------- recurrent layers
def sequence(draw, count):
    time, batch, n = (draw(st.integers(low, 3)) for low in (0, 0, 1))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    dtype = draw(wide_dtypes)
    return [
        rng.standard_normal(shape).astype(dtype)
        for shape in ((time, batch, count * n), (batch, n), (batch, n), (count * n, n), (count * n,))
    ]


@ROWS.add("lstm")
def lstm(draw, name):
    (gates, h, c, w, _), reverse = sequence(draw, 4), draw(st.booleans())
    inputs, out, n = [gates, h, c, w], np.empty((*gates.shape[:2], h.shape[1])), h.shape[1]
    h, c = double(h), double(c)
    for t in reversed(range(len(gates))) if reverse else range(len(gates)):
        i, f, g, o = np.split(double(gates[t]) + h @ double(w).T, [n, 2 * n, 3 * n], 1)
        c = logistic(f) * c + logistic(i) * np.tanh(g)
        out[t] = h = logistic(o) * np.tanh(c)
    agree(name, inputs, (out, h, c), reverse=reverse)


@ROWS.add("gru")
def gru(draw, name):
    (gates, h, _, w, bias), reverse = sequence(draw, 3), draw(st.booleans())
    inputs, out, n = [gates, h, w, bias], np.empty((*gates.shape[:2], h.shape[1])), h.shape[1]
    h = double(h)
    for t in reversed(range(len(gates))) if reverse else range(len(gates)):
        x, z = (np.split(double(a), [n, 2 * n], 1) for a in (gates[t], h @ double(w).T + bias))
        r, u = logistic(x[0] + z[0]), logistic(x[1] + z[1])
        out[t] = h = (1 - u) * np.tanh(x[2] + r * z[2]) + u * h
    agree(name, inputs, (out, h), reverse=reverse)


# ---------------------------------------------------------------- losses
def fractions(draw, a, *shape):
    """Draw numbers between 0.1 and 0.9, of the dtype of ``a``."""
    return np.random.default_rng(draw(st.integers(0, 99))).uniform(0.1, 0.9, shape).astype(a.dtype)


@ROWS.add("huber")
def huber(draw, name):
    a, delta = draw(one()), 0.71
    b = like(draw, a, *a.shape)
    d = double(a) - double(b)
    expected = np.where(abs(d) < delta, d * d / 2, delta * (abs(d) - delta / 2))
    agree(name, [a, b], expected, delta=delta)


@ROWS.add("binary_cross_entropy")
def binary_cross_entropy(draw, name):
    a = draw(one())
    p, t = fractions(draw, a, *a.shape), fractions(draw, a, *a.shape)
    x, y = double(p), double(t)
    agree(name, [p, t], -(y * np.log(x) + (1 - y) * np.log(1 - x)))


@ROWS.add("logistic")
def binary_cross_entropy_of_logits(draw, name):
    a = draw(one())
    t, w = fractions(draw, a, *a.shape), fractions(draw, a, *a.shape[-1:])
    x, y = double(a), double(t)
    agree(name, [a, t, w], y * double(w) * softplus(-x) + (1 - y) * softplus(x))


@ROWS.add("kl_div")
def kl_div(draw, name):
    a, logs = draw(one()), draw(st.booleans())
    t = fractions(draw, a, *a.shape)
    x, y = double(a), double(t)
    expected = np.exp(y) * (y - x) if logs else y * (np.log(y) - x)
    agree(name, [a, t], expected, log_target=logs)


def classes(draw):
    """Draw logits (..., classes), targets of which some are ignored (-1), and the losses of all rows."""
    logits = rows_of(draw, 1)
    targets = np.asarray(
        np.random.default_rng(draw(st.integers(0, 99))).integers(-1, logits.shape[-1], logits.shape[:-1])
    )
    return logits, targets, *losses_of(double(logits), targets)


def losses_of(logits, targets):
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(logs, np.maximum(targets, 0)[..., None], -1)[..., 0]
    return -np.where(targets < 0, 0, picked), (targets >= 0).sum()


def reduce(losses, count, reduction):
    return losses if reduction == "none" else losses.sum() / (max(count, 1) if reduction == "mean" else 1)


@ROWS.add("cross_entropy")
def cross_entropy(draw, name):
    (logits, targets, losses, count), reduction = classes(draw), draw(st.sampled_from(["mean", "sum"]))
    agree(name, [logits, targets], reduce(losses, count, reduction), ignore_index=-1, reduction=reduction)


@ROWS.add("class_cross_entropy")
def class_cross_entropy(draw, name):
    (logits, targets, losses, count), reduction = classes(draw), draw(st.sampled_from(["mean", "sum", "none"]))
    attrs = {"ignore_index": -1, "reduction": reduction, "label_smoothing": 0.0}
    agree(name, [logits, targets], reduce(losses, count, reduction), **attrs)


@ROWS.add("linear_cross_entropy")
def linear_cross_entropy(draw, name):
    x = rows_of(draw, dtype=wide_dtypes)
    w = like(draw, x, draw(st.integers(1, 4)), x.shape[-1])
    targets = np.random.default_rng(draw(st.integers(0, 99))).integers(-1, len(w), x.shape[:-1])
    expected = reduce(*losses_of(double(x) @ double(w).T, targets), "mean")
    attrs = {"ignore_index": -1, "reduction": "mean", "chunk_rows": draw(st.integers(1, 5))}
    agree(name, [x, w, targets], expected, **attrs)
