"""A path of steps, taken by what this rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from hpcdist.array import Array
from hpcdist.autograd import Tensor, apply
from hpcdist.comm.work import Done, Then, Work
from hpcdist.dtensor.exchange import EXCHANGE
from hpcdist.dtensor.lend import lend
from hpcdist.dtensor.move import imove
from hpcdist.dtensor.placements import Partial
from hpcdist.dtensor.redistribute import redistribute
from hpcdist.dtensor.steps import Step, is_free

__all__ = ["along", "posted"]


def along(local: Tensor, path: Sequence[Step]) -> Tensor:
    """Return what this rank holds after ``path``. Collective over the axes that change, unless they change for free.

    It is the tensor itself where it stays as it is and no gradient is wanted.
    """
    if not local.requires_grad:
        path = [step for step in path if not step.stays]
    elif local.node is None and all([step.lends or step.adds for step in path]):
        comms = tuple([step.group for step in path if step.lends])
        local, path = lend(local, comms) if comms else local, [step for step in path if not step.lends]
    for step in path:
        local = _take(local, step)
    return local


def _take(local: Tensor, step: Step) -> Tensor:
    """Take one step. Collective over its axis, or over all that cut; see the step."""
    if step.axis is None:
        return cast(Tensor, apply(EXCHANGE, local, src=step.src, dst=step.dst))
    return redistribute(local, *step.kinds, step.group, step.seen)


def posted(local: Tensor, path: Sequence[Step]) -> Work[Tensor]:
    """Post the first step of a path that communicates; take the others when it is waited for."""
    first = next((i for i, step in enumerate(path) if not is_free(step) and _may_be_posted(step)), len(path))
    start = along(local, path[:first])
    if first == len(path):
        return Done(start)
    step, rest = path[first], path[first + 1 :]
    move = (*step.kinds, step.group, step.seen)

    def finish(moved: Array) -> Tensor:
        return along(redistribute(start, *move, moved=moved), rest)

    return Then(imove(start.data, *move), finish)


def _may_be_posted(step: Step) -> bool:
    """Say whether a step is one collective on one axis; a maximum that is finished needs two."""
    return step.axis is not None and not (isinstance(p := step.kinds[0], Partial) and p.op not in ("sum", "avg"))
