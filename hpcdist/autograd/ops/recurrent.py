"""Recurrent layers over a whole sequence: LSTM (Hochreiter, Schmidhuber 1997), GRU (Cho et al. 2014, arXiv:1406.1078).

The part of the gates that comes from the input is an argument: one product for all times, made before. GRU is the
variant whose reset gate acts after the recurrent product, as torch's.
"""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import check_floating
from hpcdist.kernels.precision import wide

__all__ = ["GRU", "LSTM"]


def _sigmoid(x: Array) -> Array:
    # tanh is bounded: no overflow at either end
    y: Array = 0.5 * (1 + namespace(x).tanh(0.5 * x))
    return y


def _check(gates: Array, w: Array, states: tuple[Array, ...], count: int) -> None:
    check_floating(gates, w, *states)
    if gates.ndim != 3 or w.ndim != 2 or w.shape[0] != count * w.shape[1] or gates.shape[2] != w.shape[0]:
        raise ValueError(f"expected gates (time, batch, {count} * hidden) and weight ({count} * hidden, hidden)")
    if any(s.shape != (gates.shape[1], w.shape[1]) for s in states):
        raise ValueError(f"expected a state of shape {(gates.shape[1], w.shape[1])}")


def _in_order(a: Array, reverse: bool) -> Array:
    """Return a view of times in the order in which they are visited."""
    return a[::-1] if reverse else a


def _grad_of(g: Array | None, like: Array) -> Array:
    return namespace(like).zeros_like(like) if g is None else wide(g)


def _flat(a: Array) -> Array:
    """Return (time, batch, n) as rows."""
    return a.reshape(-1, a.shape[-1])


@row("[t]b[x],b[h],b[h],[x][h]->[t]b[h],b[h],b[h]")
def lstm(
    gates: Array, h: Array, c: Array, w: Array, *, reverse: bool
) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    """Return the outputs (time, batch, n) and the last states h and c (batch, n).

    Parameters
    ----------
    gates : array
        (time, batch, 4 n): ``x @ w_ih.T`` and biases, for input, forget, cell and output gate.
    h, c : array
        (batch, n): first states.
    w : array
        (4 n, n).
    reverse : bool
        Begin with the last time.
    """
    _check(gates, w, (h, c), 4)
    xp, dtype = namespace(gates), gates.dtype
    weight, active = wide(w), wide(gates).copy()
    hs = xp.empty((len(gates) + 1, *h.shape), active.dtype)
    cs = xp.empty_like(hs)
    hs[0], cs[0] = h, c
    for step, z in enumerate(_in_order(active, reverse)):
        z += hs[step] @ weight.T
        i, f, g, o = (z[:, k] for k in _each(h.shape[1], 4))
        i[...], f[...], g[...], o[...] = _sigmoid(i), _sigmoid(f), xp.tanh(g), _sigmoid(o)
        cs[step + 1] = f * cs[step] + i * g
        hs[step + 1] = o * xp.tanh(cs[step + 1])
    out = _in_order(hs[1:], reverse).astype(dtype)
    return (out, hs[-1].astype(dtype), cs[-1].astype(dtype)), (active, hs, cs, weight)


def _each(n: int, count: int) -> list[slice]:
    """Return where each of ``count`` gates is."""
    return [slice(k * n, (k + 1) * n) for k in range(count)]


@lstm
def LSTM(into: Any, grads: Any, saved: Any, reverse: bool) -> None:
    active, hs, cs, w = saved
    xp, n = namespace(active), w.shape[1]
    gout = None if grads[0] is None else _in_order(wide(grads[0]), reverse)
    gh, gc = _grad_of(grads[1], hs[0]), _grad_of(grads[2], cs[0])
    gz = xp.empty_like(active)
    for step in reversed(range(len(active))):
        i, f, g, o = (_in_order(active, reverse)[step][:, k] for k in _each(n, 4))
        gi, gf, gg, go = (_in_order(gz, reverse)[step][:, k] for k in _each(n, 4))
        if gout is not None:
            gh = gh + gout[step]
        turned = xp.tanh(cs[step + 1])
        gc = gc + gh * o * (1 - turned * turned)
        gi[...], gf[...] = gc * g * i * (1 - i), gc * cs[step] * f * (1 - f)
        gg[...], go[...] = gc * i * (1 - g * g), gh * turned * o * (1 - o)
        gh, gc = _in_order(gz, reverse)[step] @ w, gc * f
    _give(into, (gz, gh, gc, _weight_grad(gz, hs, reverse)))


def _weight_grad(gz: Array, hs: Array, reverse: bool) -> Array:
    gradient: Array = _flat(gz).T @ _flat(_in_order(hs[:-1], reverse))
    return gradient


def _give(into: Any, gradients: tuple[Array, ...]) -> None:
    for target, gradient in zip(into, gradients, strict=True):
        if target is not None:
            target.give(gradient.astype(target.dtype, copy=False))


def _gru_signature(shapes: list[tuple[int, ...]], **_: Any) -> str:
    return "[t]b[x],b[h],[x][h]" + (",[x]" if len(shapes) == 4 else "") + "->[t]b[h],b[h]"


@row(_gru_signature)
def gru(
    gates: Array, h: Array, w: Array, bias: Array | None = None, *, reverse: bool
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    """Return the outputs (time, batch, n) and the last state (batch, n).

    Parameters
    ----------
    gates : array
        (time, batch, 3 n): ``x @ w_ih.T + b_ih``, for reset, update and new gate.
    h : array
        (batch, n): first state.
    w, bias : array
        (3 n, n) and (3 n,): ``r`` multiplies ``h @ w.T + bias`` of the new gate.
    reverse : bool
        Begin with the last time.
    """
    _check(gates, w, (h,), 3)
    if bias is not None and bias.shape != w.shape[:1]:
        raise ValueError(f"expected a bias of shape {w.shape[:1]}")
    xp, dtype, n = namespace(gates), gates.dtype, h.shape[1]
    weight, active = wide(w), wide(gates).copy()
    hs = xp.empty((len(gates) + 1, *h.shape), active.dtype)
    recurrent = xp.empty((len(gates), *h.shape), active.dtype)
    hs[0] = h
    for step, a in enumerate(_in_order(active, reverse)):
        z = hs[step] @ weight.T
        if bias is not None:
            z += wide(bias)
        r, u, new = (a[:, k] for k in _each(n, 3))
        recurrent[step] = z[:, 2 * n :]
        a[:, : 2 * n] = _sigmoid(a[:, : 2 * n] + z[:, : 2 * n])
        new[...] = xp.tanh(new + r * recurrent[step])
        hs[step + 1] = new + u * (hs[step] - new)
    out = _in_order(hs[1:], reverse).astype(dtype)
    return (out, hs[-1].astype(dtype)), (active, hs, recurrent, weight)


@gru
def GRU(into: Any, grads: Any, saved: Any, reverse: bool) -> None:
    active, hs, recurrent, w = saved
    xp, n = namespace(active), w.shape[1]
    gout = None if grads[0] is None else _in_order(wide(grads[0]), reverse)
    gh = _grad_of(grads[1], hs[0])
    gx, gz = xp.empty_like(active), xp.empty_like(active)
    for step in reversed(range(len(active))):
        r, u, new = (_in_order(active, reverse)[step][:, k] for k in _each(n, 3))
        into_x, into_z = _in_order(gx, reverse)[step], _in_order(gz, reverse)[step]
        if gout is not None:
            gh = gh + gout[step]
        before = gh * (1 - u) * (1 - new * new)
        into_x[:, :n] = before * recurrent[step] * r * (1 - r)
        into_x[:, n : 2 * n] = gh * (hs[step] - new) * u * (1 - u)
        into_x[:, 2 * n :] = before
        into_z[...] = into_x
        into_z[:, 2 * n :] *= r
        gh = gh * u + into_z @ w
    gradients = (gx, gh, _weight_grad(gz, hs, reverse), _flat(gz).sum(0))
    _give(into, gradients[: len(into)])
