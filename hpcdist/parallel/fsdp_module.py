"""What a fully sharded module can do besides being called (torch's FSDPModule)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

from hpcdist.array import Array
from hpcdist.comm import Work
from hpcdist.comm.work import Done, Then
from hpcdist.data.plan import deal
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.parallel.running import units_below
from hpcdist.parallel.sharded import ShardedUnit
from hpcdist.parallel.walk import Round

__all__ = ["FSDPModule", "fsdp_class", "register_fsdp_forward_method"]


class FSDPModule:
    """Methods of every module that was given to ``fully_shard``; ``recurse``: also for sharded modules inside."""

    sharded_unit: ShardedUnit

    # ---- parameters
    def unshard(self, async_op: bool = False) -> Work[None] | None:
        """Gather the parameters of this unit, not of those inside. Collective over the shard axis.

        They stay whole until :meth:`reshard`. With ``async_op`` it is posted, and the Work must be waited for.
        """
        unit = self.sharded_unit
        unit.stays = True
        if async_op:
            unit.gathered.post()
            return Then(Done(None), lambda _: _ignore(unit.gathered.get()))
        unit.gathered.get()
        return None

    def reshard(self) -> None:
        """Let go of the whole parameters of this unit."""
        self.sharded_unit.stays = False
        self.sharded_unit.gathered.let_go()

    # ---- gradients
    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Say whether backward reduces gradients, or only adds them up, whole, on each rank."""
        self._set("syncs", requires_gradient_sync, recurse)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add gradients up in a block: the next backward outside reduces the sum.

        Until then they are not in ``grad``: ``zero_grad`` of the module forgets them, that of an optimizer does not.
        """
        before = [(unit, unit.settings.syncs) for unit in self._units(recurse=True)]
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            for unit, syncs in before:
                unit.settings.syncs = syncs

    def turns(self, of: int) -> list[int | None]:
        """Return which of ``of`` micro-batches this rank works on, in order: one in so many ranks.

        None, in the last round: there is none left, and the rank takes part in gathering and reducing with any.
        """
        rank, size = self.sharded_unit.place
        return deal(of, size, rank)

    @contextmanager
    def micro_batch(self, index: int | None, *, of: int) -> Iterator[None]:
        """Run the forward and the backward of one of :meth:`turns` in a block; they come in order.

        Gradients are reduced in the last one. In reproducible runs (``hd.init(reproducible=True)``) they are exchanged
        in each, and added up by a tree over all micro-batches, so that bits do not depend on the number of ranks; where
        ``index`` is None they do not count. A 16-bit ``reduce_dtype`` is what travels; sums are float32.
        """
        rank, size = self.sharded_unit.place
        start = (of - 1) // size * size if index is None else index - rank
        if index not in self.turns(of):
            raise ValueError(explain("micro_batch: index", got=index, expected=f"one of {self.turns(of)}"))
        units = self._units(recurse=True)
        before = [(unit.settings, unit.settings.round, unit.settings.syncs) for unit in units]
        for unit in units:
            unit.settings.round = Round(start, of)
            unit.settings.syncs &= start + size >= of or unit.reducing.reproducible
        try:
            yield
        finally:
            for settings, earlier, syncs in before:
                settings.round, settings.syncs = earlier, syncs

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Say whether gradients that are reduced over shards are added up over copies, too, or wait for a later one."""
        self._set("all_reduces", requires_all_reduce, recurse)

    def set_gradient_divide_factor(self, factor: float, *, recurse: bool = True) -> None:
        """Divide sums of gradients over ranks by ``factor``; default: the number of ranks, in reproducible runs 1."""
        if not factor > 0:
            raise ValueError(explain("set_gradient_divide_factor", got=factor, expected="a number above 0"))
        self._set("factor", float(factor), recurse)

    def set_all_reduce_hook(self, hook: Callable[[Array], object] | None, *, recurse: bool = True) -> None:
        """Have ``hook(flat)`` see, and perhaps change in place, the reduced gradients of each message; None: nobody.

        It is called where they are complete: after reductions over shards, and over copies if there are any.
        """
        self._set("all_reduce_hook", hook, recurse)

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Accept torch's switch, which changes nothing: ranks send sums, and divide."""
        _check_flag("set_force_sum_reduction_for_comms", enable)

    def set_reduce_scatter_unused_params(self, enable: bool, *, recurse: bool = True) -> None:  # noqa: ARG002 (torch's)
        """Accept torch's switch: ranks that do not use a parameter always take part in its reduction."""
        _check_flag("set_reduce_scatter_unused_params", enable)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Say whether the next backward is the last one before a step: before it, parameters may stay whole."""
        self._set("reshards_after_backward", is_last_backward, True)

    # ---- when parameters are let go of
    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Say whether parameters are let go of between forward and backward."""
        _check_flag("set_reshard_after_forward", reshard_after_forward)
        self._set("reshards_after_forward", reshard_after_forward, recurse)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Say whether parameters are let go of after backward; kept, they are those of before the optimizer's step."""
        _check_flag("set_reshard_after_backward", reshard_after_backward)
        self._set("reshards_after_backward", reshard_after_backward, recurse)

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Say whether backward gathers this unit on its way, or only if it needs a parameter."""
        _check_flag("set_unshard_in_backward", unshard_in_backward)
        self._set("unshards_in_backward", unshard_in_backward, False)

    # ---- what is gathered ahead
    def set_prefetch(self, prefetch: bool, *, recurse: bool = True) -> None:
        """Say whether the unit that came next the last time is gathered while one computes, forward and backward.

        It hides messages between nodes behind computation, and keeps one more unit whole; on one node ranks compute
        with the cores that copy, so the default is not to.
        """
        _check_flag("set_prefetch", prefetch)
        self._set("prefetches", prefetch, recurse)

    def set_modules_to_forward_prefetch(self, modules: Sequence[Module]) -> None:
        """Choose the modules whose parameters are gathered while this one's forward runs."""
        self.sharded_unit.settings.ahead = _sharded("set_modules_to_forward_prefetch", modules)

    def set_modules_to_backward_prefetch(self, modules: Sequence[Module]) -> None:
        """Choose the modules whose parameters are gathered while this one's backward runs."""
        self.sharded_unit.settings.ahead_in_backward = _sharded("set_modules_to_backward_prefetch", modules)

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters, also those that wait to be reduced."""
        for unit in self._units(recurse=True):
            unit.reduction.discard()
        Module.zero_grad(cast(Module, self))

    def reset_iter_state(self) -> None:
        """Forget what a forward or backward that failed has left behind, its gradients too.

        Collective over the mesh, if a backward failed. The next forward does it by itself.
        """
        for unit in self._units(recurse=True):
            unit.recover()

    # ---- what a sharded module cannot do
    def to(self, dtype: Any) -> Self:
        """Raise: messages have been laid out for the dtypes that there were."""
        do = "cast the module before fully_shard, or pass a MixedPrecisionPolicy"
        raise ValueError(explain(f"{type(self).__name__}.to", got=dtype, do=do))

    def __deepcopy__(self, memo: Any) -> Self:
        do = "build the module again, shard it alike, and load_state_dict"
        raise TypeError(explain(f"a {type(self).__name__} cannot be copied: its ranks share messages", do=do))

    # ---- what they share
    def _units(self, *, recurse: bool) -> list[ShardedUnit]:
        assert isinstance(self, Module)
        return units_below(self) if recurse else [self.sharded_unit]

    def _set(self, name: str, value: Any, recurse: bool) -> None:
        for unit in self._units(recurse=recurse):
            setattr(unit.settings, name, value)


def fsdp_class(kind: type[Module]) -> type[Module]:
    """Return the class of sharded modules of a kind: named FSDP and its name, as torch's."""
    return type(f"FSDP{kind.__name__}", (FSDPModule, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def register_fsdp_forward_method(module: Module, method_name: str) -> None:
    """Have another method of a sharded module (``generate``, say) find whole parameters, as ``forward`` does.

    Also below it: what it calls of other sharded modules gathers for itself. A module that is not sharded is left as
    it is.

    Raises
    ------
    ValueError
        If there is no such method.
    """
    method = getattr(module, method_name, None)
    if not callable(method):
        what = f"register_fsdp_forward_method: {type(module).__name__}.{method_name}"
        raise ValueError(explain(what, got=method, expected="a method"))
    if isinstance(module, FSDPModule):
        module.__dict__[method_name] = functools.wraps(method)(functools.partial(module.through, method))


def _sharded(what: str, modules: Sequence[Module]) -> list[ShardedUnit]:
    for module in modules:
        if not isinstance(module, FSDPModule):
            do = "call fully_shard on it first"
            raise ValueError(explain(f"{what}: a module", got=type(module).__name__, expected="a sharded one", do=do))
    return [module.sharded_unit for module in modules if isinstance(module, FSDPModule)]


def _check_flag(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(explain(what, got=value, expected="True or False"))


def _ignore(_: object) -> None:
    return None
