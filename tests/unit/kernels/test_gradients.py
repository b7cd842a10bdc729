"""Gradients against central differences, values against formulas written another way; generic forms, float64."""

import math

import numpy as np
import pytest

from hpcdist.kernels.activation import gelu, gelu_grad, silu, silu_grad, swiglu, swiglu_grad
from hpcdist.kernels.attention import attention, attention_grad, rotary
from hpcdist.kernels.erf import erf
from hpcdist.kernels.loss import cross_entropy, cross_entropy_grad
from hpcdist.kernels.norm import layer_norm, layer_norm_grad, rms_norm, rms_norm_grad
from hpcdist.kernels.softmax import log_softmax, log_softmax_grad, softmax, softmax_grad

STEP = 1e-5


def draw(*shape):
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape)


def slopes(function, x):
    """Return the gradient of a number by central differences."""
    gradient = np.empty_like(x)
    for i in np.ndindex(*x.shape):
        there, here = x.copy(), x.copy()
        there[i] += STEP
        here[i] -= STEP
        gradient[i] = (function(there) - function(here)) / (2 * STEP)
    return gradient


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-8)


def weighted(kernel, g, shape, *rest):
    """Return the function x -> sum(g * kernel(x))."""

    def value(x):
        y = np.empty(shape)
        kernel(x, y, *rest)
        return (g * y).sum()

    return value


@pytest.mark.parametrize(
    ("kernel", "grad", "rest"),
    [(gelu, gelu_grad, (True,)), (gelu, gelu_grad, (False,)), (silu, silu_grad, ())],
    ids=["gelu tanh", "gelu erf", "silu"],
)
def test_activations(kernel, grad, rest):
    x, g, gx = 2 * draw(3, 5), draw(3, 5) + 1, np.empty((3, 5))
    grad(x, g, gx, *rest)
    close(gx, slopes(weighted(kernel, g, x.shape, *rest), x))
    grad(x, g, g, *rest)  # in place
    close(g, gx)


def test_swiglu():
    z, g, gz = draw(3, 8), draw(3, 4), np.empty((3, 8))
    swiglu_grad(z, g, gz)
    close(gz, slopes(weighted(swiglu, g, g.shape), z))
    swiglu_grad(z, g, z)  # in place
    close(z, gz)


def test_values_of_activations():
    x, y = np.linspace(-9, 9, 301)[None], np.empty((1, 301))
    normal = np.array([[0.5 * math.erfc(-v / math.sqrt(2)) for v in x[0]]])
    gelu(x, y, False)
    close(y, x * normal)
    gelu(x, y, True)
    close(y, 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    silu(x, y)
    close(y, 0.5 * x * (1 + np.tanh(0.5 * x)))


def test_erf():
    x = np.linspace(-7, 7, 4001)
    want = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(erf(x), want, rtol=1e-15, atol=1e-15)
    np.testing.assert_array_equal(erf(np.array([np.inf, -np.inf, np.nan])), [1, -1, np.nan])


@pytest.mark.parametrize(
    ("kernel", "grad", "from_output"),
    [(softmax, softmax_grad, True), (log_softmax, log_softmax_grad, True)],
)
def test_softmaxes(kernel, grad, from_output):
    x, g, y, gx = draw(3, 5), draw(3, 5) + 1, np.empty((3, 5)), np.empty((3, 5))
    kernel(x, y)
    grad(y, g, gx)
    close(gx, slopes(weighted(kernel, g, x.shape), x))
    p = y if kernel is softmax else np.exp(y)
    close(p, np.exp(x) / np.exp(x).sum(1, keepdims=True))


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("add", [False, True])
def test_norms(kind, add):
    x, gain, shift, g = draw(3, 7), draw(7) + 2, draw(7), draw(3, 7) + 1
    mean, rstd, y = np.zeros(3), np.empty(3), np.empty((3, 7))

    def value(x, gain, shift):
        if kind == "layer":
            layer_norm(x, gain, shift, 1e-3, y, mean, rstd)
        else:
            rms_norm(x, gain, 1e-3, y, rstd)
        return (g * y).sum()

    value(x, gain, shift)
    centred = x - x.mean(1, keepdims=True) if kind == "layer" else x
    close(y, centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-3) * gain + (shift if kind == "layer" else 0))
    before = draw(3, 7) if add else np.full((3, 7), np.nan)
    gx, ggain, gshift = before.copy(), np.empty(7), slopes(lambda s: value(x, gain, s), shift)
    value(x, gain, shift)
    if kind == "layer":
        layer_norm_grad(g, x, mean, rstd, gain, gx, add, ggain, gshift)
    else:
        rms_norm_grad(g, x, rstd, gain, gx, add, ggain)
    close(gx - (before if add else 0), slopes(lambda x: value(x, gain, shift), x))
    close(ggain, slopes(lambda gain: value(x, gain, shift), gain))
    close(gshift, slopes(lambda shift: value(x, gain, shift), shift))


def test_cross_entropy():
    logits, targets = draw(4, 6), np.array([5, -100, 0, 3])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    want = -sum(math.log(p[i, t]) for i, t in enumerate(targets) if t != -100)
    assert cross_entropy(logits, targets, -100) == pytest.approx(want, rel=1e-12)
    gradient = logits.copy()
    assert cross_entropy_grad(gradient, targets, -100, 0.25) == pytest.approx(want, rel=1e-12)
    close(gradient, 0.25 * slopes(lambda x: cross_entropy(x, targets, -100), logits))


def naive_attention(qkv, num_heads, seq, scale, causal):
    """Return attention's output, token by token."""
    head = qkv.shape[1] // 3 // num_heads
    out = np.empty((len(qkv), num_heads * head))
    for i in range(len(qkv)):
        first, last = i - i % seq, i + 1 if causal else i - i % seq + seq
        for h in range(num_heads):
            q, k, v = (qkv[:, (3 * h + part) * head : (3 * h + part + 1) * head] for part in range(3))
            e = np.exp(scale * k[first:last] @ q[i])
            out[i, h * head : (h + 1) * head] = e / e.sum() @ v[first:last]
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    heads, seq, head = 2, 3, 4
    qkv, g = draw(2 * seq, 3 * heads * head), draw(2 * seq, heads * head)
    out, lse, gqkv = np.empty(g.shape), np.empty((2 * heads, seq)), np.empty(qkv.shape)
    attention(qkv, heads, seq, 0.7, causal, out, lse)
    close(out, naive_attention(qkv, heads, seq, 0.7, causal))
    attention_grad(qkv, out, g, lse, heads, seq, 0.7, causal, gqkv)
    close(gqkv, slopes(lambda x: (g * naive_attention(x, heads, seq, 0.7, causal)).sum(), qkv))


def test_rotary():
    heads, seq, half = 2, 5, 3
    qkv = draw(2 * seq, 3 * heads * 2 * half)
    angles = np.arange(seq)[:, None] * np.array([1.0, 0.3, 0.01])
    cos, sin, out = np.cos(angles), np.sin(angles), np.empty(qkv.shape)
    rotary(qkv, cos, sin, heads, 1, out)
    before, after = (x.reshape(2, seq, heads, 3, 2, half) for x in (qkv, out))
    turned = (before[..., 0, :] + 1j * before[..., 1, :]) * np.exp(1j * angles)[:, None, None]
    close(after[:, :, :, :2, 0], turned.real[:, :, :, :2])
    close(after[:, :, :, :2, 1], turned.imag[:, :, :, :2])
    close(after[:, :, :, 2], before[:, :, :, 2])
    rotary(out, cos, sin, heads, -1, out)
    close(out, qkv)
