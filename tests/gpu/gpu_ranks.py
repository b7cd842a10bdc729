"""A rank of the tests on a card: ``gpu_ranks.py CASE`` says "right on rank R" if all numbers are right."""

import sys

import cupy as cp
import numpy as np

import hpcdist as hd

COUNT = 2**24
REPEATS = 50

SLOW = cp.ElementwiseKernel(
    "float32 value, int32 rounds",
    "float32 out",
    "float a = value; for (int k = 0; k < rounds; ++k) a = a * 0.5f + value * 0.5f; out = a;",
    "slow_fill",
)
"""Leaves ``value``, a small integer, as it is, but takes its time."""


def total(comm, repeat):
    return sum(rank + 1 + repeat for rank in range(comm.size))


def b08(comm):
    """Filled on a stream of its own, summed at once, read on another stream: exact, 50 times of 50."""
    work, reading = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    for repeat in range(REPEATS):
        with work:
            x = cp.empty(COUNT, cp.float32)
            SLOW(np.float32(comm.rank + 1 + repeat), np.int32(2000), x)
            y = comm.all_reduce(x)
        with reading:
            assert int((y != total(comm, repeat)).sum()) == 0, f"repeat {repeat}"


def b08_outside_the_stream(comm):
    """The same, but the stream is not the current one any more when the sum is asked for."""
    work = cp.cuda.Stream(non_blocking=True)
    for repeat in range(REPEATS):
        x = cp.empty(COUNT, cp.float32)
        with work:
            SLOW(np.float32(comm.rank + 1 + repeat), np.int32(2000), x)
        comm.all_reduce(x, out=x)
        with cp.cuda.Stream(non_blocking=True):
            assert int((x != total(comm, repeat)).sum()) == 0, f"repeat {repeat}"


def verbs(comm):
    """Every verb, on strided arrays too, beside NumPy."""
    for dtype in ("f4", "f8", "f2", "i4", "c8"):
        mine = [(np.arange(24).reshape(4, 6) + 10 * rank).astype(dtype) for rank in range(comm.size)]
        x = cp.asarray(np.repeat(mine[comm.rank], 2, axis=1))[:, ::2]
        same(comm.all_reduce(x), sum(mine))
        same(comm.iall_reduce(x).wait(), sum(mine))
        same(comm.all_gather(x, 1), np.concatenate(mine, 1))
        same(comm.broadcast(x, comm.size - 1), mine[-1])
        sizes = [4] + [0] * (comm.size - 1)
        same(comm.reduce_scatter(x, sizes=sizes), sum(mine)[: sizes[comm.rank]])
        parts = comm.all_to_all([x] * comm.size, [x.shape] * comm.size)
        for part, expected in zip(parts, mine, strict=True):
            same(part, expected)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        sent = comm.isend(x, right)
        same(comm.recv(cp.empty_like(x), left), mine[left])
        sent.wait()


def large_messages(comm):
    """Several pieces, of which the last is short."""
    count = 5_000_001
    x = cp.arange(count, dtype=cp.float64) + comm.rank
    expected = np.arange(count) * comm.size + sum(range(comm.size))
    same(comm.all_reduce(x), expected)
    same(comm.all_gather(x)[-count:], np.arange(count) + comm.size - 1.0)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = comm.isend(x, right)
    same(comm.recv(cp.empty_like(x), left), np.arange(count) + float(left))
    sent.wait()


def interfaces(comm):
    """Arrays of another library: known by an interface, or by DLPack."""
    x = cp.full(1000, comm.rank + 1.0)

    class ByInterface:
        dtype, shape = x.dtype, x.shape
        __cuda_array_interface__ = {**x.__cuda_array_interface__, "stream": None}

    class ByDlpack:
        def __dlpack__(self, **options):
            return x.__dlpack__(**options)

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    for other in (ByInterface(), ByDlpack()):
        same(comm.all_reduce(other), np.full(1000, sum(range(1, comm.size + 1))))


def same(x, expected):
    assert isinstance(x, cp.ndarray)
    np.testing.assert_array_equal(cp.asnumpy(x), expected.astype(x.dtype))


if __name__ == "__main__":
    group = hd.init()
    globals()[sys.argv[1]](group)
    sys.stdout.write(f"right on rank {group.rank}\n")
