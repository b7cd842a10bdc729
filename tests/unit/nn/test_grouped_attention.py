"""Queries that share keys and values against attention written out in plain NumPy."""

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor, manual_seed
from hpcdist.nn import functional as F

BATCH, SEQ, HEADS, DIM = 2, 5, 6, 4


def attention(qkv, kv_heads, causal):
    group = HEADS // kv_heads
    parts = qkv.reshape(BATCH, SEQ, kv_heads, group + 2, DIM)
    out = np.empty((BATCH, SEQ, HEADS, DIM))
    for head in range(HEADS):
        g, i = divmod(head, group)
        q, k, v = parts[:, :, g, i], parts[:, :, g, group], parts[:, :, g, group + 1]
        scores = np.einsum("bqd,bkd->bqk", q, k) / DIM**0.5
        if causal:
            scores = np.where(np.tri(SEQ, dtype=bool), scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, :, head] = (e / e.sum(-1, keepdims=True)) @ v
    return out.reshape(BATCH, SEQ, HEADS * DIM)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_heads_of_a_group_share_key_and_value(kv_heads, causal, dtype, tolerance):
    qkv = np.random.default_rng(0).standard_normal((BATCH, SEQ, (HEADS + 2 * kv_heads) * DIM)).astype(dtype)
    packed = F.ungroup(Tensor(qkv), HEADS, kv_heads)
    result = F.packed_attention(packed, HEADS, causal)
    np.testing.assert_allclose(result.data, attention(qkv, kv_heads, causal), rtol=tolerance, atol=tolerance)


def test_one_query_a_group_is_the_head_major_order():
    qkv = np.random.default_rng(0).standard_normal((BATCH, SEQ, 3 * HEADS * DIM))
    np.testing.assert_array_equal(F.ungroup(Tensor(qkv), HEADS, HEADS).data, qkv)


def test_the_module_shares_what_it_says():
    manual_seed(0)
    module = nn.MultiheadAttention(HEADS * DIM, HEADS, num_kv_heads=2)
    assert module.qkv.weight.shape == ((HEADS + 4) * DIM, HEADS * DIM)
    x = Tensor(np.random.default_rng(0).standard_normal((BATCH, SEQ, HEADS * DIM)).astype(np.float32))
    want = attention(module.qkv(x).data.astype(float), 2, True) @ module.proj.weight.data.T + module.proj.bias.data
    np.testing.assert_allclose(module(x).data, want, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="num_kv_heads"):
        nn.MultiheadAttention(HEADS * DIM, HEADS, num_kv_heads=4)


def test_a_model_with_shared_keys_is_smaller_and_learns():
    sizes = {"vocab_size": 11, "seq": 6, "num_layers": 1, "num_heads": 4, "width": 16, "positions": "rotary"}
    shared = nn.GPT(nn.GPTConfig(**sizes, num_kv_heads=1))
    plain = nn.GPT(nn.GPTConfig(**sizes))
    assert sum(p.size for p in plain.parameters()) - sum(p.size for p in shared.parameters()) == 2 * 3 * 4 * 17
    tokens = np.arange(12).reshape(2, 6) % 11
    shared(tokens, tokens).backward()
    assert all(p.grad is not None for p in shared.parameters())


@pytest.mark.parametrize("shape", [(2, 0, 8), (0, 3, 8)])
def test_no_tokens_and_no_samples(shape):
    module, x = nn.MultiheadAttention(8, 4, rotary_base=10.0, num_kv_heads=2), Tensor(np.zeros(shape, np.float32), True)
    y = module(x)
    assert y.shape == shape
    y.sum().backward()
    assert x.grad.shape == shape
    np.testing.assert_array_equal(module.qkv.weight.grad, 0)
