"""Compiled attention: blocks, threads, NaN; and rotary positions in place."""

import threading

import numpy as np
import pytest

from hpcdist.backends import blas, cpu
from hpcdist.kernels.attention import attention, attention_grad, rotary
from hpcdist.kernels.cpu import attention as compiled


def draw(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def run(forms, qkv, gout, heads, seq, causal):
    forward, backward = forms
    batch, d = len(qkv) // seq if seq else 2, qkv.shape[1] // 3
    out, lse, gqkv = (np.full(shape, np.nan, qkv.dtype) for shape in ((len(qkv), d), (batch * heads, seq), qkv.shape))
    forward(qkv, heads, seq, 0.3, causal, out, lse)
    backward(qkv, out, gout, lse, heads, seq, 0.3, causal, gqkv)
    return out, lse, gqkv


COMPILED = compiled.attention, compiled.attention_grad
GENERIC = attention.reference, attention_grad.reference


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("batch", "seq", "heads", "head"),
    [
        (1, 1, 1, 1),
        (2, 15, 3, 17),
        (1, 63, 1, 8),
        (1, 64, 2, 32),
        (3, 65, 1, 5),
        (1, 200, 2, 16),
        (0, 4, 2, 8),
        (2, 0, 2, 8),
    ],
)
def test_blocks(batch, seq, heads, head, causal):
    qkv, gout = draw(batch * seq, 3 * heads * head), draw(batch * seq, heads * head)
    want = run(GENERIC, qkv.astype(float), gout.astype(float), heads, seq, causal)
    for got, right in zip(run(COMPILED, qkv, gout, heads, seq, causal), want, strict=True):
        np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-5)


def test_rows_of_scores_that_belong_to_no_sequence_are_refused():
    """Six tokens are not sequences of four, though three rows of four scores are two for each token."""
    args = draw(6, 12), 2, 4, 0.3, True, np.empty((6, 4), np.float32), np.empty((3, 4), np.float32)
    with pytest.raises(ValueError, match="do not fit together"):
        compiled.attention(*args)


def test_nan_reaches_every_later_token():
    qkv, gout = draw(100, 24), draw(100, 8)
    qkv[70, 9] = np.nan  # a key of token 70
    out, lse, gqkv = run(COMPILED, qkv, gout, 1, 100, True)
    for result in (out, lse.T, gqkv[:, :8]):
        rows = np.isnan(result).any(1)
        assert rows[70:].all()
        assert not rows[:64].any()  # blocks of queries before it never see it


def test_large_scores_do_not_overflow():
    qkv = 100 * draw(20, 24)
    out, lse, _ = run(COMPILED, qkv, draw(20, 8), 1, 20, False)
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()


def test_python_threads_may_run_kernels_of_two_threads_at_once(monkeypatch):
    monkeypatch.setattr(cpu, "num_threads", lambda: 2)
    before = blas.num_threads()
    qkv, gout = draw(400, 96), draw(400, 32)
    want = run(COMPILED, qkv, gout, 4, 100, True)
    results = [None] * 3

    def work(i):
        for _ in range(5):
            results[i] = run(COMPILED, qkv, gout, 4, 100, True)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(results))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    for result in results:
        for got, right in zip(result, want, strict=True):
            np.testing.assert_array_equal(got, right)
    assert blas.num_threads() == before


@pytest.mark.parametrize("half", [1, 8, 17])
def test_rotary_in_place(half):
    qkv, angles = draw(14, 12 * half), draw(7, half)
    cos, sin, out = np.cos(angles), np.sin(angles), np.empty_like(qkv)
    rotary(qkv, cos, sin, 2, 1, out)
    turned = qkv.copy()
    rotary(turned, cos, sin, 2, 1, turned)
    np.testing.assert_array_equal(turned, out)
    rotary(turned, cos, sin, 2, -1, turned)
    np.testing.assert_allclose(turned, qkv, atol=1e-6)
