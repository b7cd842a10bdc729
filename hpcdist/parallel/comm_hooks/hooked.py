"""Reductions that a user's hook makes, with one outcome on all ranks.

What a hook posts travels in a message space of its own. Ranks first tell each other, in one small message, whether
their hooks came back and where they have gradients; only then does anyone wait for what was posted. So a hook that
raises on one rank is an error on all, and keeps nobody waiting; one that blocks where another rank has raised runs into
the limit of the group.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.comm import Communicator, ReduceOp, Work
from hpcdist.errors import explain
from hpcdist.parallel.alike import check_same
from hpcdist.parallel.bucket import Bucket
from hpcdist.parallel.comm_hooks.answer import work_of
from hpcdist.parallel.comm_hooks.grad_bucket import GradBucket

__all__ = ["Hooked"]

_LATE, _WRONG = 1, 2


class Hooked:
    """A hook and what it has been called with. Collective over ``comm``, to make one.

    Parameters
    ----------
    comm : Communicator
        On which ranks agree; hooks do not use it.
    hook : callable
        ``hook(state, bucket)`` returns an array, a Work or a Future.

    Raises
    ------
    TypeError, ValueError
        The same on every rank: if ``hook`` cannot be called so, or has another name on another rank.
    """

    def __init__(self, comm: Communicator, state: Any, hook: Any) -> None:
        with comm.agreed():
            _check_callable(hook)
        check_same(comm, "register_comm_hook: hooks", [getattr(hook, "__qualname__", type(hook).__qualname__)])
        self._comm, self._state, self._hook = comm, state, hook
        self._group = comm.dup()
        self._answers: list[Work[Array]] = []
        self._error: Exception | None = None
        self._worst = 0

    def start(self, bucket: Bucket, *, index: int, is_last: bool) -> None:
        """Call the hook, unless it has failed in this backward already."""
        bucket.op = ReduceOp.AVG  # a hook divides itself
        if self._error is not None:
            return
        shown = GradBucket(bucket.gradients, bucket.parameters, self._group, index=index, is_last=is_last)
        try:
            self._answers.append(work_of(self._hook(self._state, shown)))
        except Exception as e:
            self._error = e

    def finish(self, buckets: Sequence[Bucket]) -> bool:
        """Wait for what hooks have posted and put it where gradients lie; say whether that went well on all ranks.

        Collective over ``comm``.
        """
        found = self._told([had for bucket in buckets for had in bucket.had])
        if not self._worst:
            self._receive(buckets)
            self._told([])
        self._answers = []
        start = 0
        for bucket in buckets:
            stop = start + len(bucket.had)
            bucket.present[...] = namespace(bucket.buffer).asarray(found[start:stop]).astype(bucket.buffer.dtype)
            start = stop
        return not self._worst

    def _told(self, had: list[bool]) -> Any:
        """Return where any rank has gradients, and note the worst that happened on one. Collective over ``comm``."""
        mine = 0 if self._error is None else _LATE if isinstance(self._error, TimeoutError) else _WRONG
        work = self._comm.iall_reduce(np.array([mine, *had], np.int32), ReduceOp.MAX)
        worst, *found = work.wait(2 * self._comm.timeout_s)  # a hook that blocks on another rank has its own limit
        self._worst = int(worst)
        return np.array(found, np.int32)

    def _receive(self, buckets: Sequence[Bucket]) -> None:
        try:
            for bucket, answer in zip(buckets, self._answers, strict=True):
                received = answer.wait()
                _check_fits(received, bucket.gradients)
                if received is not bucket.gradients:
                    bucket.gradients[...] = received
        except Exception as e:
            self._error = e

    def fail(self) -> None:
        """Raise what went wrong, after :meth:`finish` has said so. Collective over ``comm``.

        Hooks get a new group: in the old one, messages of ranks whose hooks went well wait for others for ever.
        """
        error, self._error = self._error, None
        self._group = self._comm.dup()
        is_late = isinstance(error, TimeoutError)
        self._comm.agree(None if is_late and self._worst == _WRONG else error)

    def free(self) -> None:
        """Give the group back. Collective over it."""
        self._group.free()


def _check_callable(hook: Any) -> None:
    expected = "a function of two arguments: hook(state, bucket)"
    if not callable(hook):
        raise TypeError(explain("register_comm_hook: hook", got=type(hook).__name__, expected=expected))
    try:
        inspect.signature(hook).bind("state", "bucket")
    except TypeError as e:
        got = f"{getattr(hook, '__name__', 'hook')}{inspect.signature(hook)}"
        raise TypeError(explain("register_comm_hook: hook", got=got, expected=expected)) from e


def _check_fits(received: Array, gradients: Array) -> None:
    found, expected = (f"{x.dtype} {x.shape}" for x in (received, gradients))
    if found != expected:
        do = "return all gradients of the bucket, in the shape and dtype of bucket.buffer()"
        raise ValueError(explain("hook: what it returns", got=found, expected=expected, do=do))
