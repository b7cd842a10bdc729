"""What a hook may return: an array, or something to wait for that has one."""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, is_array
from hpcdist.comm import Future, Work
from hpcdist.comm.work import Done
from hpcdist.errors import explain

__all__ = ["Answer", "work_of"]

Answer = Array | Work[Any] | Future[Any]


def work_of(answer: Answer) -> Work[Array]:
    """Return the work whose result is the array of an answer.

    Parameters
    ----------
    answer : array, Work or Future
        Its value may also be a list of one array, as that of ``all_reduce(..., async_op=True).get_future()``.

    Raises
    ------
    TypeError
        If it is none of these.
    """
    if isinstance(answer, Work | Future):
        return _Awaited(answer)
    if is_array(answer):
        return Done(answer)
    raise TypeError(explain("hook: what it returns", got=type(answer).__name__, expected="an array, Work or Future"))


class _Awaited(Work[Array]):
    """What a hook has posted, with one array for a result."""

    def __init__(self, answer: Work[Any] | Future[Any]) -> None:
        self._answer = answer

    def test(self) -> bool:
        """Say whether there is nothing to wait for."""
        return self._answer.done() if isinstance(self._answer, Future) else self._answer.test()

    def wait(self, timeout_s: float | None = None) -> Array:
        """Block until done and return the array; a future has the limit of its group."""
        value = self._answer.wait() if isinstance(self._answer, Future) else self._answer.wait(timeout_s)
        if value is True:  # a work of torch's verbs: result() has what it wrote
            value = self._answer.result()  # type: ignore[union-attr]
        if isinstance(value, list | tuple) and len(value) == 1:
            value = value[0]
        if not is_array(value):
            raise TypeError(
                explain("hook: the value that was waited for", got=type(value).__name__, expected="an array")
            )
        array: Array = value
        return array
