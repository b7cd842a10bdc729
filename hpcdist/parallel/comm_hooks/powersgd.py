"""PowerSGD: gradients travel as products of two thin matrices.

Vogels, Karimireddy and Jaggi 2019, PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization,
arXiv:1905.13727, algorithms 1 and 2. Of a matrix M (n, m), the mean over ranks, one step of subspace iteration finds
P = orthogonal(M Q) (n, r) and Q' = M^T P (m, r); what all ranks get is P Q'^T. Both are linear in M before and after
P is made orthogonal, so ranks average them in place of M. What this leaves out on a rank is added to its next gradient
(error feedback), and Q' is where the next iteration begins (warm start).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hpcdist.array import Array, namespace
from hpcdist.comm import ReduceOp, Work
from hpcdist.comm.work import Then
from hpcdist.kernels.precision import wide
from hpcdist.parallel.comm_hooks.default_hooks import allreduce_hook
from hpcdist.parallel.comm_hooks.grad_bucket import GradBucket
from hpcdist.parallel.comm_hooks.powersgd_state import PowerSGDState

__all__ = ["powerSGD_hook"]


def powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Work[Array]:  # noqa: N802 (torch's name)
    """Average gradients as products of thin matrices, once the first steps are over.

    Collective over the group of ``state``, or the ranks of the model: in two messages a bucket, or one where nothing
    in it is thin. Of more than two dimensions the first is kept, and the others are one. Numbers of 16 bits travel as
    float32.
    """
    if state.iter >= state.start:
        step = _Step(state, bucket)
        return Then(step.post(), step.finish)

    def keep(whole: Array) -> Array:
        state.keep(bucket)
        return whole

    return Then(allreduce_hook(state.process_group, bucket), keep)


class _Step:
    """One step for one bucket, in two messages."""

    def __init__(self, state: PowerSGDState, bucket: GradBucket) -> None:
        self._state, self._bucket = state, bucket
        self._comm = state.process_group or bucket.group
        buffer = bucket.buffer()
        buffer += state.error(bucket)
        self._before = buffer.copy()
        matrices = [g.reshape(len(g), -1) if g.ndim > 1 and g.size else g for g in bucket.gradients()]
        self._thin = [m for m in matrices if state.is_thin(m)]
        self._rest = [m for m in matrices if not state.is_thin(m)]

    def post(self) -> Work[Array]:
        """Send M Q, and what travels whole."""
        starts = self._state.starts_of(self._bucket, [wide(m) for m in self._thin])
        qs = [_orthogonal(q, self._state.epsilon) for q in starts]
        self._first = [wide(m) @ q for m, q in zip(self._thin, qs, strict=True)] + [wide(g) for g in self._rest]
        work = self._comm.iall_reduce(_flat(self._first), ReduceOp.AVG)
        self._comm.watch(work)
        return work

    def finish(self, received: Array) -> Array:
        """Send M^T P; return the gradients that all ranks have then."""
        found = _views(received, self._first)
        ps = [_orthogonal(p, self._state.epsilon) for p in found[: len(self._thin)]]
        qs = [wide(m).T @ p for m, p in zip(self._thin, ps, strict=True)]
        if qs:
            qs = _views(self._comm.all_reduce(_flat(qs), ReduceOp.AVG), qs)
        whole = [p @ q.T for p, q in zip(ps, qs, strict=True)] + found[len(self._thin) :]
        for gradient, value in zip(self._thin + self._rest, whole, strict=True):
            gradient[...] = value
        buffer = self._bucket.buffer()
        self._state.keep(self._bucket, self._before - buffer, qs)
        return buffer


def _orthogonal(x: Array, epsilon: float) -> Array:
    """Return orthogonal columns that span those of x (n, r)."""
    if epsilon == 0:
        q: Array = namespace(x).linalg.qr(x)[0]
        return q
    x = x.copy()
    for i in range(x.shape[1]):
        column, later = x[:, i : i + 1], x[:, i + 1 :]
        column /= namespace(x).linalg.norm(column) + epsilon
        later -= column @ (column.T @ later)
    return x


def _flat(arrays: Sequence[Array]) -> Array:
    flat: Array = namespace(arrays[0]).concatenate([a.reshape(-1) for a in arrays])
    return flat


def _views(flat: Array, like: Sequence[Array]) -> list[Array]:
    """Return the parts of ``flat`` in the shapes of what it was made of."""
    ends = accumulate(a.size for a in like)
    return [flat[end - a.size : end].reshape(a.shape) for end, a in zip(ends, like, strict=True)]
