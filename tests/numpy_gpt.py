"""A decoder-only GPT in plain NumPy with a hand-written backward pass: the oracle of the tests.

Nothing of hpcdist is in it. Every function comes as a pair: ``f`` returns its output and what its derivative
needs, ``f_back`` takes that and the gradient of the output. Arrays keep the dtype of the weights throughout;
B = batch, T = time, d = width, h = heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Config:
    num_layers: int
    num_heads: int
    width: int
    mlp: str = "gelu_tanh"  # or "gelu", "swiglu"
    norm: str = "layer"  # or "rms"
    positions: str = "learned"  # or "rotary"
    eps: float = 1e-5

    @property
    def hidden(self):
        """Rows of fc1 (half of them for SwiGLU), columns of fc2."""
        return -(-8 * self.width // 24) * 8 if self.mlp == "swiglu" else 4 * self.width


def weight_shapes(config, vocab, length):
    """Return name -> shape of every weight, in the model's order; ``length`` positions if learned."""
    d, f, biased = config.width, config.hidden, config.norm == "layer"

    def norm(name):
        return {f"{name}.weight": (d,)} | ({f"{name}.bias": (d,)} if biased else {})

    def linear(name, out, into):
        return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}

    shapes = {"wte.weight": (vocab, d)}
    if config.positions == "learned":
        shapes["wpe.weight"] = (length, d)
    for i in range(config.num_layers):
        block = f"blocks.{i}"
        shapes |= norm(f"{block}.ln1")
        shapes |= linear(f"{block}.attn.qkv", 3 * d, d)
        shapes |= linear(f"{block}.attn.proj", d, d)
        shapes |= norm(f"{block}.ln2")
        shapes |= linear(f"{block}.mlp.fc1", 2 * f if config.mlp == "swiglu" else f, d)
        shapes |= linear(f"{block}.mlp.fc2", d, f)
    return shapes | norm("ln_f")


def random_weights(config, vocab, length, seed=0, dtype=np.float64, scale=0.3):
    """Return weights that exercise every term: nothing is zero, norm weights lie around one."""
    rng = np.random.default_rng(seed)
    return {
        name: (scale * rng.standard_normal(shape) + (".ln" in f".{name}" and name.endswith("weight"))).astype(dtype)
        for name, shape in weight_shapes(config, vocab, length).items()
    }


# ---- linear


def linear(x, w, name):
    y = x @ w[f"{name}.weight"].T
    return (y + w[f"{name}.bias"] if f"{name}.bias" in w else y), x


def linear_back(gy, x, w, name, grads):
    rows = gy.reshape(-1, gy.shape[-1])
    grads[f"{name}.weight"] = rows.T @ x.reshape(-1, x.shape[-1])
    if f"{name}.bias" in w:
        grads[f"{name}.bias"] = rows.sum(0)
    return gy @ w[f"{name}.weight"]


# ---- norms: y = (x - mean) / sqrt(var + eps) * weight + bias; RMS norm has neither mean nor bias


def norm(x, w, name, config):
    centred = x - x.mean(-1, keepdims=True) if config.norm == "layer" else x
    scale = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + x.dtype.type(config.eps))
    unit = centred * scale
    y = unit * w[f"{name}.weight"]
    return (y + w[f"{name}.bias"] if config.norm == "layer" else y), (unit, scale)


def norm_back(gy, saved, w, name, config, grads):
    unit, scale = saved
    grads[f"{name}.weight"] = (gy * unit).reshape(-1, gy.shape[-1]).sum(0)
    if config.norm == "layer":
        grads[f"{name}.bias"] = gy.reshape(-1, gy.shape[-1]).sum(0)
    g = gy * w[f"{name}.weight"]
    gx = g - unit * (g * unit).mean(-1, keepdims=True)
    if config.norm == "layer":
        gx = gx - g.mean(-1, keepdims=True)
    return gx * scale


# ---- activations: value and derivative

erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x):
    cdf = (0.5 * (1 + erf(x / math.sqrt(2)))).astype(x.dtype)
    density = np.exp(-0.5 * x * x) * x.dtype.type(1 / math.sqrt(2 * math.pi))
    return x * cdf, cdf + x * density


def gelu_tanh(x):
    c, k = x.dtype.type(math.sqrt(2 / math.pi)), x.dtype.type(0.044715)
    t = np.tanh(c * (x + k * x * x * x))
    return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * k * x * x)


def silu(x):
    s = 1 / (1 + np.exp(-x))
    return x * s, s * (1 + x * (1 - s))


def activation(x, config):
    """Return the activation and a function from its gradient to that of ``x``."""
    if config.mlp == "swiglu":
        gate, up = np.split(x, 2, axis=-1)
        y, slope = silu(gate)
        return y * up, lambda gy: np.concatenate([gy * up * slope, gy * y], axis=-1)
    y, slope = {"gelu": gelu, "gelu_tanh": gelu_tanh}[config.mlp](x)
    return y, lambda gy: gy * slope


# ---- attention


def rotate(x, sign=1, base=10000.0):
    """Turn the pairs (x[i], x[i + n/2]) of the last axis by (index on axis -2) * base^(-2i/n)."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[-2])[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angle).astype(x.dtype), (sign * np.sin(angle)).astype(x.dtype)
    x1, x2 = x[..., :half], x[..., half:]
    return np.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


def attention(x, w, name, config):
    B, T, d = x.shape
    h = config.num_heads
    qkv, saved_in = linear(x, w, f"{name}.qkv")
    q, k, v = qkv.reshape(B, T, h, 3, d // h).transpose(3, 0, 2, 1, 4)
    if config.positions == "rotary":
        q, k = rotate(q), rotate(k)
    scores = q @ k.swapaxes(-1, -2) * x.dtype.type(1 / math.sqrt(d // h))
    scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    y, saved_out = linear((p @ v).transpose(0, 2, 1, 3).reshape(B, T, d), w, f"{name}.proj")
    return y, (saved_in, q, k, v, p, saved_out)


def attention_back(gy, saved, w, name, config, grads):
    saved_in, q, k, v, p, saved_out = saved
    B, h, T, n = q.shape
    g = linear_back(gy, saved_out, w, f"{name}.proj", grads).reshape(B, T, h, n).transpose(0, 2, 1, 3)
    gp = g @ v.swapaxes(-1, -2)
    gs = p * (gp - (gp * p).sum(-1, keepdims=True)) * gy.dtype.type(1 / math.sqrt(n))
    gq, gk, gv = gs @ k, gs.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g
    if config.positions == "rotary":
        gq, gk = rotate(gq, -1), rotate(gk, -1)
    gqkv = np.stack([gq, gk, gv]).transpose(1, 3, 2, 0, 4).reshape(B, T, 3 * h * n)
    return linear_back(gqkv, saved_in, w, f"{name}.qkv", grads)


# ---- the whole model


def mlp(x, w, name, config):
    pre, saved_in = linear(x, w, f"{name}.fc1")
    hidden, back = activation(pre, config)
    y, saved_out = linear(hidden, w, f"{name}.fc2")
    return y, (saved_in, back, saved_out)


def mlp_back(gy, saved, w, name, grads):
    saved_in, back, saved_out = saved
    return linear_back(back(linear_back(gy, saved_out, w, f"{name}.fc2", grads)), saved_in, w, f"{name}.fc1", grads)


def block(x, w, name, config):
    """Return x + attn(ln1(x)), then that + mlp(ln2(that))."""
    normed, s1 = norm(x, w, f"{name}.ln1", config)
    y, s2 = attention(normed, w, f"{name}.attn", config)
    x = x + y
    normed, s3 = norm(x, w, f"{name}.ln2", config)
    y, s4 = mlp(normed, w, f"{name}.mlp", config)
    return x + y, (s1, s2, s3, s4)


def block_back(g, saved, w, name, config, grads):
    s1, s2, s3, s4 = saved
    g = g + norm_back(mlp_back(g, s4, w, f"{name}.mlp", grads), s3, w, f"{name}.ln2", config, grads)
    return g + norm_back(attention_back(g, s2, w, f"{name}.attn", config, grads), s1, w, f"{name}.ln1", config, grads)


def hidden_states(weights, tokens, config):
    """Return the normed last hidden state (B, T, d) and what backward needs."""
    x = weights["wte.weight"][tokens]
    if config.positions == "learned":
        x = x + weights["wpe.weight"][: tokens.shape[1]]
    saved = []
    for i in range(config.num_layers):
        x, s = block(x, weights, f"blocks.{i}", config)
        saved.append(s)
    x, s = norm(x, weights, "ln_f", config)
    return x, [*saved, s]


def logits(weights, tokens, config):
    """Return the logits, shape (B, T, vocabulary)."""
    return hidden_states(weights, tokens, config)[0] @ weights["wte.weight"].T


def cross_entropy(z, targets):
    """Return the mean cross-entropy in nats and its gradient with respect to the logits ``z``."""
    rows = np.arange(targets.size)
    z = z.reshape(targets.size, -1)
    shifted = z - z.max(-1, keepdims=True)
    total = np.exp(shifted).sum(-1, keepdims=True)
    loss = (np.log(total[:, 0]) - shifted[rows, targets.ravel()]).mean()
    gz = np.exp(shifted) / total
    gz[rows, targets.ravel()] -= 1
    return loss, (gz / z.dtype.type(targets.size)).reshape(*targets.shape, -1)


def loss_and_grads(weights, tokens, targets, config):
    """Return the mean cross-entropy of all tokens and its gradient, one array a weight.

    Parameters
    ----------
    weights : dict of str to array
        Names and shapes as in :func:`weight_shapes`; a linear layer without a bias has none.
    tokens, targets : integer array, shape (B, T)
    config : Config
    """
    x, saved = hidden_states(weights, tokens, config)
    wte = weights["wte.weight"]
    loss, gz = cross_entropy(x @ wte.T, targets)
    grads = {"wte.weight": gz.reshape(-1, len(wte)).T @ x.reshape(-1, config.width)}
    g = norm_back(gz @ wte, saved.pop(), weights, "ln_f", config, grads)
    for i in reversed(range(config.num_layers)):
        g = block_back(g, saved.pop(), weights, f"blocks.{i}", config, grads)
    np.add.at(grads["wte.weight"], tokens, g)
    if config.positions == "learned":
        grads["wpe.weight"] = np.zeros_like(weights["wpe.weight"])
        grads["wpe.weight"][: tokens.shape[1]] = g.sum(0)
    return loss, grads


def adamw_step(weights, grads, state, t, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
    """Update ``weights`` and ``state`` (name -> both moments; starts empty) in place; ``t`` counts from 1.

    Decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2) in the order of torch.optim.AdamW.
    """
    b1, b2 = betas
    for name, g in grads.items():
        w = weights[name]
        m, v = state.setdefault(name, (np.zeros_like(w), np.zeros_like(w)))
        w *= 1 - lr * weight_decay
        m += (1 - b1) * (g - m)
        v *= b2
        v += (1 - b2) * g * g
        w -= lr / (1 - b1**t) * m / (np.sqrt(v) / math.sqrt(1 - b2**t) + eps)
