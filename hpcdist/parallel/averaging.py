"""Local SGD: ranks train on their own and average their parameters now and then (Lin et al. 2020, arXiv:1808.07217)."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.comm import Communicator, ReduceOp
from hpcdist.errors import explain
from hpcdist.optim.optimizer import flat_values
from hpcdist.parallel.ranks import ranks_of

__all__ = ["HierarchicalModelAverager", "ModelAverager", "PeriodicModelAverager", "average_parameters"]


def average_parameters(
    params: Iterable[Tensor] | Iterable[Mapping[str, Any]], process_group: Communicator | None = None
) -> None:
    """Replace parameters by their mean over ranks. Collective over the group: one message a dtype.

    Moves about ``2 (size - 1) / size`` of the parameters' bytes per rank.

    Parameters
    ----------
    params : tensors, or parameter groups of an optimizer
        As many on every rank, of the same sizes. Those that need no gradient are left as they are; whether there is
        one does not count, since that may differ between ranks.
    process_group : Communicator, optional
        The ranks; default: all.

    Raises
    ------
    TypeError
        If one is distributed.
    """
    comm = ranks_of(process_group)
    together: dict[Any, list[Tensor]] = {}
    for p in _listed(params):
        together.setdefault(p.dtype, []).append(p)
    for parameters in together.values():
        _average(parameters, comm)


def _average(parameters: list[Tensor], comm: Communicator) -> None:
    """Replace parameters of one dtype by their mean. Collective over ``comm``."""
    values = [flat_values(p) for p in parameters]
    flat: Array = namespace(values[0]).concatenate(values)
    comm.all_reduce(flat, ReduceOp.AVG, out=flat)
    start = 0
    for value in values:
        value[...] = flat[start : start + value.size]
        start += value.size


def _listed(params: Iterable[Any]) -> list[Tensor]:
    """Return what is trained of parameters, or of those of groups."""
    items = list(params)
    listed = [p for item in items for p in (item["params"] if isinstance(item, Mapping) else [item])]
    for p in listed:
        if hasattr(p, "placements"):
            what = "average_parameters: a parameter is distributed"
            raise TypeError(explain(what, got=p.placements, expected="plain tensors, whole on every rank"))
    return [p for p in listed if p.requires_grad]


class ModelAverager(ABC):
    """Base of what averages parameters at some steps.

    Attributes
    ----------
    step : int
        Steps so far; set it to go on from a checkpoint.
    warmup_steps : int
        Steps, from the start, at which nothing is averaged here: gradients are then.
    """

    def __init__(self, warmup_steps: int) -> None:
        _check_number(type(self).__name__, "warmup_steps", warmup_steps, 0)
        self.warmup_steps, self.step = warmup_steps, 0

    @abstractmethod
    def _group_at(self, step: int) -> Communicator | None:
        """Return the ranks that average after step ``step``, which are after the warm-up; None: no one does."""

    def average_parameters(self, params: Iterable[Tensor] | Iterable[Mapping[str, Any]]) -> None:
        """Average parameters, if it is time to, and count a step. Collective over the ranks that average.

        Parameters
        ----------
        params : tensors, or parameter groups of an optimizer
            All of them: each call is a step. See :func:`average_parameters`.
        """
        group = self._group_at(self.step) if self.step >= self.warmup_steps else None
        if group is not None:
            average_parameters(params, group)
        self.step += 1


class PeriodicModelAverager(ModelAverager):
    """Average over all ranks after step ``warmup_steps`` and every ``period`` steps from there; they count from 0.

    Parameters
    ----------
    period : int
        Above 0; 1 warns: averaged gradients would do the same with less to send.
    warmup_steps : int
        Steps at which nothing is averaged.
    process_group : Communicator, optional
        The ranks; default: all.

    Raises
    ------
    ValueError, TypeError
        If a number is out of range or not whole.
    """

    def __init__(self, period: int, warmup_steps: int = 0, process_group: Communicator | None = None) -> None:
        super().__init__(warmup_steps)
        _check_number("PeriodicModelAverager", "period", period, 1)
        if period == 1:
            warnings.warn(
                "PeriodicModelAverager: parameters are averaged after every step (period 1): to average gradients, "
                "with hd.parallel.replicate, is faster",
                stacklevel=2,
            )
        self.period, self.comm = period, ranks_of(process_group)

    def _group_at(self, step: int) -> Communicator | None:
        return self.comm if (step - self.warmup_steps) % self.period == 0 else None


class HierarchicalModelAverager(ModelAverager):
    """Average over few ranks often, and over more of them less often: in a node, a rack, the machine.

    After the warm-up, at a step that is a multiple of several periods the longest one counts; steps count from 0.
    Collective over the ranks.

    Parameters
    ----------
    period_group_size_dict : dict of int to int, or "node"
        The number of neighbours that average, by period, both rising, up to all ranks; each number divides the next
        one. "node", only as the first: the ranks of a node.
    warmup_steps : int
        Steps at which nothing is averaged.
    process_group : Communicator, optional
        The ranks; default: all.

    Attributes
    ----------
    period_process_group_dict : dict of int to Communicator
        The group of this rank, by period.

    Raises
    ------
    ValueError, TypeError
        The same on every rank: if a number is out of range or not whole, or they do not fit each other.
    """

    def __init__(
        self,
        period_group_size_dict: Mapping[int, int | Literal["node"]] | None = None,
        warmup_steps: int = 0,
        process_group: Communicator | None = None,
    ) -> None:
        super().__init__(warmup_steps)
        sizes = dict(period_group_size_dict or {})
        self.comm = ranks_of(process_group)
        _check_levels(sizes, self.comm.size)
        self.period_process_group_dict = {period: _level(self.comm, size) for period, size in sizes.items()}

    def _group_at(self, step: int) -> Communicator | None:
        groups = self.period_process_group_dict
        return next((groups[period] for period in reversed(groups) if step % period == 0), None)


def _level(comm: Communicator, size: int | Literal["node"]) -> Communicator:
    """Return the group of so many neighbours in which this rank is. Collective over ``comm``."""
    if size == "node":
        return comm.split_node()
    group = comm if size == comm.size else comm.split_by(lambda rank: (rank // size, rank))
    assert group is not None
    return group


# ---------------------------------------------------------------- what is refused
def _check_number(who: str, name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(explain(f"{who}: {name}", got=repr(value), expected="an int"))
    if value < least:
        raise ValueError(explain(f"{who}: {name}", got=value, expected=f"{least} or more"))


def _check_levels(sizes: Mapping[int, Any], num_ranks: int) -> None:
    who = "HierarchicalModelAverager"
    if not sizes:
        raise ValueError(explain(f"{who}: period_group_size_dict", got="nothing", expected="{period: ranks, ...}"))
    levels = [*sizes.values()]
    counts = levels[1:] if levels[0] == "node" else levels
    for period in sizes:
        _check_number(who, "period", period, 1)
    for count in counts:
        _check_number(who, "ranks that average", count, 1)
    if not all(a < b for a, b in pairwise(sizes)) or any(a >= b or b % a for a, b in pairwise(counts)):
        expected = "periods that rise, and numbers of ranks that rise, each a divisor of the next"
        raise ValueError(explain(f"{who}: period_group_size_dict", got=dict(sizes), expected=expected))
    if counts and counts[-1] != num_ranks:
        raise ValueError(explain(f"{who}: ranks that average last", got=counts[-1], expected=f"{num_ranks}, all"))
