"""ZeRO stage 1: Rajbhandari et al. 2020, arXiv:1910.02054: parameters on every rank, what optimizers keep on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.comm import Communicator, ReduceOp, objects
from hpcdist.errors import explain
from hpcdist.optim.optimizer import Optimizer, Parameters, updates_alone
from hpcdist.parallel.alike import check_same, described
from hpcdist.parallel.ranks import ranks_of
from hpcdist.parallel.zero_row import Row, Share, deal_elements, deal_whole
from hpcdist.parallel.zero_state import cut_out, joined

__all__ = ["ZeroRedundancyOptimizer"]


class ZeroRedundancyOptimizer(Optimizer):
    """Any optimizer, of which each rank does one part of the work and keeps one part of the state.

    Every rank has all parameters and their gradients, which are the same on all, as :func:`replicate` leaves them.
    Each updates its part, and one message a group and dtype gives all of them the values. The results are those of
    the plain optimizer, bit for bit, at any number of ranks. Groups, names, hooks, ``grad_scale`` and schedules work
    as there. Collective over the ranks.

    Parameters
    ----------
    params : see :data:`hpcdist.optim.optimizer.Parameters`
        The same on every rank, whole, of any dtypes.
    optimizer_class : type of Optimizer
        What updates; it has to update a parameter without knowing the others, as LBFGS cannot.
    process_group : Communicator, optional
        The ranks; default: all.
    parameters_as_bucket_view : bool
        Let parameters have their memory side by side, so that values travel without a second copy of all parameters.
    overlap_with_ddp : bool
        Of torch, where it skips the first updates; must be False.
    elementwise : bool
        Deal out elements rather than whole parameters: ranks get equal parts whatever the sizes. For optimizers that
        update an element without knowing the others: LAMB and LARS cannot.
    **defaults
        Options of ``optimizer_class``.

    Attributes
    ----------
    comm : Communicator
        The ranks.
    state : dict of str to dict
        What this rank keeps for its part.

    Raises
    ------
    ValueError, TypeError
        The same on every rank: if parameters differ between ranks, there are none, one is distributed, or the
        optimizer cannot work on a part; and what ``optimizer_class`` raises.
    """

    def __init__(
        self,
        params: Parameters,
        optimizer_class: type[Optimizer],
        process_group: Communicator | None = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        *,
        elementwise: bool = False,
        **defaults: Any,
    ) -> None:
        self.comm = ranks_of(process_group)
        self.elementwise = elementwise
        with self.comm.agreed():
            _check_class(optimizer_class, elementwise)
            _check_no_overlap(overlap_with_ddp)
            self._rule = optimizer_class(params, **defaults)
        self._is_buffer = parameters_as_bucket_view
        self._loads = [0] * self.comm.size
        self._rows: list[Row] = []
        self._mine: list[tuple[Share, dict[str, Any]]] = []
        self._whole: dict[str, Any] | None = None
        check_same(self.comm, "ZeroRedundancyOptimizer: groups", [len(self._rule.param_groups)])
        super().__init__([_as_given(group) for group in self._rule.param_groups], **self._rule.defaults)
        self._rule.param_groups, self._rule.state = self.param_groups, self.state

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters, and deal them out: what is dealt out already stays where it is. Collective over the ranks.

        Raises
        ------
        ValueError, TypeError
            As of any optimizer, the same on every rank; also if the group differs between ranks.
        """
        before = len(self.param_groups)
        try:
            with self.comm.agreed():
                super().add_param_group(group)
                for name, p in _named(self.param_groups[-1]):
                    _check_not_distributed(name, p)
            told = [described(*named) for named in _named(self.param_groups[-1])]
            check_same(self.comm, "ZeroRedundancyOptimizer: parameters", told)
        except Exception:
            del self.param_groups[before:]
            raise
        self._deal(self.param_groups[-1])
        self._whole = None

    def _deal(self, group: dict[str, Any]) -> None:
        """Deal the parameters of a group out to ranks, dtype by dtype."""
        for dtype in dict.fromkeys(p.dtype for p in group["params"]):
            named = [(name, p) for name, p in _named(group) if p.dtype == dtype]
            shares = deal_elements(named, self.comm.size) if self.elementwise else deal_whole(named, self._loads)
            if any(shares):
                self._rows.append(Row(shares, is_buffer=self._is_buffer))
                self._mine += [(share, group) for share in shares[self.comm.rank]]

    # ---- steps
    def step(self, closure: Any = None) -> Any:
        """Update every parameter that has a gradient; see :meth:`Optimizer.step`. Collective over the ranks.

        Moves about ``(size - 1) / size`` of the parameters' bytes per rank. An error on one rank is raised on all;
        parameters may differ between them then.
        """
        return super().step(closure)

    def _update_all(self) -> None:
        self._whole = None
        error = None
        try:
            self._update_mine()
        except Exception as e:
            error = e
        self._agree(error)
        for row in self._rows if self.comm.size > 1 else ():
            row.exchange(self.comm)

    def _update_mine(self) -> None:
        for row in self._rows:
            row.prepare()
        self._rule.grad_scale = self.grad_scale
        for share, group in self._mine:
            if share.parameter.grad is not None:
                self._rule._update(share.as_parameter(), self.state.setdefault(share.name, {}), group)

    def _agree(self, error: Exception | None) -> None:
        """Raise on every rank what one has met; without an error that is eight bytes. Collective over the ranks."""
        failed = self.comm.all_reduce(np.array([error is not None], np.int64), ReduceOp.MAX)
        if failed[0]:
            self.comm.agree(error)

    # ---- state
    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather the whole state on one rank, for the next :meth:`state_dict` there. Collective over the ranks.

        The next step forgets it.

        Raises
        ------
        ValueError
            On every rank: if ``to`` is no rank, or ranks keep different things for a parameter.
        """
        if to not in range(self.comm.size):
            raise ValueError(explain("consolidate_state_dict: to", got=to, expected=f"0 to {self.comm.size - 1}"))
        parts = objects.gather(self.comm, self._part(), to)
        with self.comm.agreed():
            self._whole = None if parts is None else joined(parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's part, the arrays in use; or the whole, where it was gathered since a step.

        A part has an entry more, "part": ``{"rank", "size", "ranges": {name: [start, stop]}}``. Nothing is sent.
        """
        return self._part() if self._whole is None else self._whole

    def _part(self) -> dict[str, Any]:
        told = cut_out(self.comm.rank, self.comm.size, (share for share, _ in self._mine))
        return {**super().state_dict(), "part": told}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a whole state, of any number of ranks or of the plain optimizer. Collective over the ranks.

        Parameters
        ----------
        state : dict, or sequence of dict
            The whole, the same on every rank; or the parts of all ranks there were, in any order; or this rank's part,
            for a part that is the same.

        Raises
        ------
        ValueError
            The same on every rank: as of any optimizer, or if a part is that of another one. Nothing is changed then
            on the ranks that found it.
        """
        with self.comm.agreed():
            self._load_mine(state if isinstance(state, Mapping) else joined(state))
        self._whole = None

    def _load_mine(self, state: Mapping[str, Any]) -> None:
        mine = {share.name: slice(share.start, share.stop) for share, _ in self._mine}
        if "part" in state:
            self._check_part(state["part"])
            sizes = {share.name: share.size for share, _ in self._mine}
            self._rule._load(state, sizes, dict.fromkeys(mine, slice(None)))
        else:
            sizes = {name: p.size for group in self.param_groups for name, p in _named(group)}
            self._rule._load(state, sizes, mine)
        self.state = self._rule.state

    def _check_part(self, part: Mapping[str, Any]) -> None:
        mine = cut_out(self.comm.rank, self.comm.size, (share for share, _ in self._mine))
        if part != mine:
            do = "pass the parts of all ranks as a list, or the whole: consolidate_state_dict before state_dict"
            got, expected = (f"rank {p['rank']} of {p['size']}: {p['ranges']}" for p in (part, mine))
            raise ValueError(explain("load_state_dict: a part of another rank", got=got, expected=expected, do=do))


def _named(group: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(zip(group["names"], group["params"], strict=True))


def _as_given(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group as it is passed to an optimizer."""
    return {**{key: value for key, value in group.items() if key != "names"}, "params": _named(group)}


# ---------------------------------------------------------------- what is refused
def _check_class(optimizer_class: Any, elementwise: bool) -> None:
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        what = "ZeroRedundancyOptimizer: optimizer_class"
        raise TypeError(explain(what, got=repr(optimizer_class), expected="a class of hd.optim"))
    name = optimizer_class.__name__
    if not updates_alone(optimizer_class):
        what = f"ZeroRedundancyOptimizer: {name} looks at all parameters in one step"
        raise ValueError(explain(what, do=f"use {name} itself: what it keeps cannot be dealt out"))
    if elementwise and optimizer_class._needs_whole:
        what = f"ZeroRedundancyOptimizer: {name} needs norms of whole parameters"
        raise ValueError(explain(what, got="elementwise=True", do="deal out whole ones: elementwise=False"))


def _check_no_overlap(overlap_with_ddp: bool) -> None:
    if overlap_with_ddp:
        do = "leave it False; or use hd.parallel.fully_shard, which updates parts and gathers while forward runs"
        raise ValueError(explain("ZeroRedundancyOptimizer: overlap_with_ddp", got=True, expected=False, do=do))


def _check_not_distributed(name: str, parameter: Any) -> None:
    if hasattr(parameter, "placements"):
        what = f"ZeroRedundancyOptimizer: parameter {name!r} is distributed"
        do = "use the plain optimizer: it keeps on each rank what belongs to the part there"
        raise TypeError(explain(what, got=parameter.placements, expected="a plain tensor", do=do))
