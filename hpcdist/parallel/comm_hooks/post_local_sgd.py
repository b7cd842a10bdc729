"""Post-local SGD: gradients are averaged over all ranks at first, and over parts of them later, or not at all.

Lin, Stich, Patel and Jaggi 2020, Don't Use Large Mini-Batches, Use Local SGD, arXiv:1808.07217. Later it is parameters
that are averaged, now and then, as :class:`~hpcdist.parallel.PostLocalSGDOptimizer` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.array import Array
from hpcdist.comm import Communicator, Work
from hpcdist.comm.work import Done, Then
from hpcdist.errors import explain
from hpcdist.parallel.comm_hooks.default_hooks import allreduce_hook
from hpcdist.parallel.comm_hooks.grad_bucket import GradBucket

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]


class PostLocalSGDState:
    """What :func:`post_localSGD_hook` keeps between steps; a model has one of its own.

    Parameters
    ----------
    process_group : Communicator or None
        The ranks of the first steps; None: those of the model.
    subgroup : Communicator or None
        This rank's part of them for later steps; None: the ranks that share its memory.
    start_localSGD_iter : int
        How many steps there are before: as the ``warmup_steps`` of an averager.
    post_local_gradient_allreduce : bool
        Whether gradients are averaged over ``subgroup`` later; False: they are those of each rank.

    Attributes
    ----------
    iter : int
        Steps so far.

    Raises
    ------
    ValueError
        If ``start_localSGD_iter`` is below 0.
    """

    def __init__(
        self,
        process_group: Communicator | None,
        subgroup: Communicator | None,
        start_localSGD_iter: int,
        post_local_gradient_allreduce: bool = True,
    ) -> None:
        if start_localSGD_iter < 0:
            what = "PostLocalSGDState: start_localSGD_iter"
            raise ValueError(explain(what, got=start_localSGD_iter, expected="0 or more"))
        self.process_group, self.subgroup, self.start = process_group, subgroup, start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0
        self._split: tuple[Communicator, Communicator] | None = None

    def part_of(self, group: Communicator) -> Communicator:
        """Return the ranks of later steps. Collective over ``group`` at first, if none were given."""
        if self.subgroup is not None:
            return self.subgroup
        if self._split is None or self._split[0] is not group:
            self._split = group, group.split_node()
        return self._split[1]

    def state_dict(self) -> dict[str, Any]:
        """Return what training needs to go on, on any number of ranks."""
        return {"iter": self.iter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` has returned: first steps that are over do not come again."""
        self.iter = int(state["iter"])


def post_localSGD_hook(state: PostLocalSGDState, bucket: GradBucket) -> Work[Array]:  # noqa: N802 (torch's name)
    """Average gradients over all ranks in the first steps, and later over the subgroup, if at all.

    Collective over the group that it is. A parameter that got a gradient on some rank of the model has one on all.
    """
    group = state.process_group or bucket.group
    if state.iter < state.start:
        work = allreduce_hook(group, bucket)
    elif state.post_local_gradient_allreduce:
        work = allreduce_hook(state.part_of(group), bucket)
    else:
        work = Done(bucket.buffer())

    def count(gradients: Array) -> Array:
        state.iter += bucket.is_last()
        return gradients

    return Then(work, count)
