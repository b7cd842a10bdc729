"""Hooks without a state of their own: averages, in fewer bits, and nothing at all.

All are collective over ``state``, a communicator, or over the ranks of the model where it is None; except
:func:`noop_hook`. A wrapper makes a hook that hands the gradients to another one in 16 bits, and its answer back in
the dtype that they had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from hpcdist.array import Array
from hpcdist.comm import Communicator, ReduceOp, Work
from hpcdist.comm.work import Then
from hpcdist.parallel.comm_hooks.answer import Answer, work_of
from hpcdist.parallel.comm_hooks.grad_bucket import GradBucket

__all__ = [
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
    "noop_hook",
]

Hook = Callable[[Any, GradBucket], Answer]


def allreduce_hook(state: Communicator | None, bucket: GradBucket) -> Work[Array]:
    """Average gradients, as happens without a hook. Collective over ``state``, or the ranks of the model."""
    comm = state or bucket.group
    work = comm.iall_reduce(bucket.buffer(), ReduceOp.AVG, out=bucket.buffer())
    comm.watch(work)
    return work


def fp16_compress_hook(state: Communicator | None, bucket: GradBucket) -> Work[Array]:
    """Average gradients as float16: what is out of its range becomes infinite.

    Collective over ``state``, or the ranks of the model.
    """
    return fp16_compress_wrapper(allreduce_hook)(state, bucket)


def bf16_compress_hook(state: Communicator | None, bucket: GradBucket) -> Work[Array]:
    """Average gradients as bfloat16. Collective over ``state``, or the ranks of the model."""
    return bf16_compress_wrapper(allreduce_hook)(state, bucket)


def fp16_compress_wrapper(hook: Hook) -> Callable[[Any, GradBucket], Work[Array]]:
    """Return ``hook`` for gradients that it gets as float16."""
    return _in_dtype(hook, np.dtype(np.float16))


def bf16_compress_wrapper(hook: Hook) -> Callable[[Any, GradBucket], Work[Array]]:
    """Return ``hook`` for gradients that it gets as bfloat16."""
    return _in_dtype(hook, np.dtype(ml_dtypes.bfloat16))


def noop_hook(_state: Any, bucket: GradBucket) -> Array:
    """Leave to each rank its own gradients: what a step takes without communication. Parameters drift apart."""
    return bucket.buffer()


def _in_dtype(hook: Hook, dtype: np.dtype[Any]) -> Callable[[Any, GradBucket], Work[Array]]:
    def compressed(state: Any, bucket: GradBucket) -> Work[Array]:
        whole = bucket.buffer()
        with np.errstate(over="ignore"):
            bucket.set_buffer(whole.astype(dtype))
        return Then(work_of(hook(state, bucket)), lambda received: received.astype(whole.dtype))

    compressed.__qualname__ = f"{dtype.name}({getattr(hook, '__qualname__', type(hook).__name__)})"
    return compressed
