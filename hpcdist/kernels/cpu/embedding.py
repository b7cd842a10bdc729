"""The gradient of a table whose rows were looked up, compiled."""

from __future__ import annotations

from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits
from hpcdist.kernels.cpu.memory import at, load, store
from hpcdist.kernels.cpu.rows import part
from hpcdist.kernels.cpu.vector import WIDTH
from hpcdist.kernels.indices import check_indices


@compiled
def _embedding_grad(g, tokens, out, num_threads):
    # a thread has columns, not rows: two tokens may be the same
    n = g.shape[1]
    fits(tokens.size == len(g) and out.shape[1] == n)
    for t in prange(num_threads):
        columns = part(n, num_threads, t)
        for i in range(len(tokens)):
            row, to = at(g, i), at(out, tokens[i])
            for j in range(columns.start, columns.stop, WIDTH):
                rest = columns.stop - j
                store(to, j, rest, load(to, j, rest) + load(row, j, rest))


def embedding_grad(g, tokens, out):
    check_indices("embedding: tokens", tokens, len(out))
    _embedding_grad(g, tokens, out)
