"""FullyShardedDataParallel: torch's class around :func:`fully_shard`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Self

from hpcdist.comm import Communicator, DeviceMesh
from hpcdist.dtensor import DTensor
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.nn.deferral import Deferred
from hpcdist.parallel.alike import check_same, described, send_first
from hpcdist.parallel.clip import clip_grad_norm_
from hpcdist.parallel.fsdp_arguments import (
    check_given,
    ignored_modules_of,
    ignored_parameters,
    mesh_of,
    parts_of,
    ranks_of,
)
from hpcdist.parallel.fsdp_module import FSDPModule
from hpcdist.parallel.fsdp_options import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy, UnitOptions
from hpcdist.parallel.fully_shard import fully_shard
from hpcdist.parallel.running import entered
from hpcdist.parallel.state_dicts import StateDicts
from hpcdist.parallel.summon import summon_full_params

__all__ = ["FullyShardedDataParallel"]


class FullyShardedDataParallel(StateDicts):
    """A module whose parameters, gradients and optimizer state are shared out to ranks.

    Calls ``module``, whose parts that a policy chooses become units in place, as ``fully_shard`` makes them; all
    methods of :class:`FSDPModule` are there, too. Names are those of ``module``, always. Collective over the ranks, as
    are its forward and backward.

    Parameters
    ----------
    module : Module
        The same on every rank. Deferred parameters are drawn, each rank's part by itself.
    process_group : Communicator, or (Communicator, Communicator), optional
        The ranks; default: all. For hybrid strategies those that share a copy, and those that hold the same part.
    sharding_strategy : ShardingStrategy, optional
        Default FULL_SHARD. Hybrid ones share a copy among the ranks of a node, if neither groups nor mesh are given.
    cpu_offload : CPUOffload, optional
    auto_wrap_policy : function ``(module) -> bool``, optional
        Which parts are units of their own; see :class:`ModuleWrapPolicy`, :class:`CustomPolicy` and others.
    backward_prefetch : BackwardPrefetch, optional
        BACKWARD_PRE: backward gathers the next unit while it computes with one. Others: when it gets there.
    mixed_precision : MixedPrecision, optional
    ignored_modules : iterable of Module, optional
        Left as they are, with all below them; nobody reduces their gradients.
    param_init_fn : function ``(module) -> object``, optional
        Called with each module that has deferred parameters of its own, unit after unit, before they are drawn.
    device_id : None
        Of torch; a rank has one device here.
    sync_module_states : bool
        Send parameters and buffers of rank 0 to all first.
    forward_prefetch : bool
        Whether forward gathers the next unit while it computes with one, in the order of the step before.
    limit_all_gathers, use_orig_params : bool
        Of torch, and without effect: one unit is gathered ahead at most, and parameters are those of the module.
    ignored_states : iterable of parameters or of modules, optional
        As ``ignored_modules``.
    device_mesh : DeviceMesh, optional
        The ranks, instead of ``process_group``: one axis, or (copies, shards) for hybrid strategies.

    Attributes
    ----------
    module : Module
        What was given.

    Raises
    ------
    ValueError, TypeError
        The same on every rank, before anything is changed, if arguments make no sense together.
    """

    module: Module
    is_inner: bool

    def __init__(
        self,
        module: Module,
        process_group: Communicator | tuple[Communicator, Communicator] | None = None,
        sharding_strategy: ShardingStrategy | None = None,
        cpu_offload: CPUOffload | None = None,
        auto_wrap_policy: Callable[[Module], bool] | None = None,
        backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE,
        mixed_precision: MixedPrecision | None = None,
        ignored_modules: Iterable[Module] | None = None,
        param_init_fn: Callable[[Module], object] | None = None,
        device_id: Any = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,  # noqa: ARG002 (always)
        use_orig_params: bool = True,  # noqa: ARG002 (always)
        ignored_states: Iterable[Any] | None = None,
        device_mesh: DeviceMesh | None = None,
    ) -> None:
        super().__init__()
        comm, strategy = ranks_of(process_group, device_mesh), sharding_strategy or ShardingStrategy.FULL_SHARD
        with comm.agreed():
            options = UnitOptions(strategy, cpu_offload, backward_prefetch, mixed_precision, forward_prefetch)
            if isinstance(module, FullyShardedDataParallel):
                raise ValueError(explain("FullyShardedDataParallel: module", got="a wrapped one", do="wrap it once"))
            check_given(module, options, process_group, device_mesh, auto_wrap_policy, param_init_fn, device_id)
            states = None if ignored_states is None else list(ignored_states)
            ignored = ignored_modules_of(module, ignored_modules, states)
            left_out = ignored_parameters(module, ignored, states)
            parts = parts_of(module, auto_wrap_policy, options, ignored)
        check_same(
            comm,
            "FullyShardedDataParallel: options or units",
            [repr(options), sync_module_states, *(repr(chosen) for _, chosen in parts)],
        )
        mesh = mesh_of(strategy, process_group, device_mesh, comm)
        if sync_module_states:
            _send_first(comm, module, ignored, left_out)
        for part, chosen in [*parts, (module, options)]:
            _shard(part, chosen, mesh, left_out, param_init_fn)
        _round_buffers(module, mixed_precision, ignored)
        for inner in module.modules():
            if isinstance(inner, FullyShardedDataParallel):
                inner.is_inner = True
        self.module = module
        self.is_inner = False
        self._casts = None
        if mixed_precision is not None and mixed_precision.cast_root_forward_inputs:
            self._casts = mixed_precision.of_root()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        call: Callable[..., Any] = self.module
        if self._casts is not None and not entered():
            call = self._casts.around(call)
        return call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return what ``module`` has, where this one has nothing of the name."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "module" not in self.__dict__.get("children", {}):
                raise
        return getattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]

    def to(self, dtype: Any) -> Self:
        """Raise: messages have been laid out for the dtypes that there were."""
        self.module.to(dtype)
        return self

    # ---- names, and what is inside
    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (name, module) of this one and, under the names that they have without it, of those inside."""
        yield prefix, self
        yield from self.module.named_modules(prefix)

    def check_is_root(self) -> bool:
        """Say whether this one is in no other."""
        return not self.is_inner

    @staticmethod
    def fsdp_modules(module: Module, root_only: bool = False) -> list[Module]:
        """Return the sharded modules in a module: wrapped ones, and units that a policy chose.

        With ``root_only`` those that are in no other.
        """
        wrapped = {m.module for m in module.modules() if isinstance(m, FullyShardedDataParallel)}
        kinds = (FullyShardedDataParallel, FSDPModule)
        found: list[Module] = [m for m in dict.fromkeys(module.modules()) if isinstance(m, kinds) and m not in wrapped]
        below = {inner for m in found for inner in m.modules() if inner is not m}
        return [m for m in found if not (root_only and m in below)]

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call ``fn`` with every module inside, then with this one, where parameters are whole; keep what it did.

        Collective over the meshes of the parameters.
        """
        with summon_full_params(self):
            return super().apply(fn)

    summon_full_params = staticmethod(summon_full_params)

    # ---- gradients
    def no_sync(self) -> AbstractContextManager[None]:
        """Only add gradients up in a block, whole ones: the next backward outside reduces the sum."""
        self._check_root("no_sync")
        inside: Any = self.module
        block: AbstractContextManager[None] = inside.no_sync()
        return block

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scale all gradients down so that their norm together is at most ``max_norm``, and return what it was.

        Collective over the ranks; see :func:`hpcdist.parallel.clip_grad_norm_`.
        """
        self._check_root("clip_grad_norm_")
        return clip_grad_norm_(self.parameters(), max_norm, norm_type)

    def _check_root(self, name: str) -> None:
        if self.is_inner:
            do = "call it on the outermost one"
            raise RuntimeError(explain(f"FullyShardedDataParallel.{name} of a part of another", do=do))


# ---------------------------------------------------------------- construction
def _shard(
    part: Module,
    options: UnitOptions,
    mesh: DeviceMesh,
    left_out: list[Any],
    param_init_fn: Callable[[Module], object] | None,
) -> None:
    """Make a unit. Collective over the mesh."""
    if param_init_fn is not None:
        for m in dict.fromkeys(part.modules()):
            if any(isinstance(p, Deferred) for p in m.slots.values()):
                param_init_fn(m)
    unit: Any = fully_shard(part, mesh=mesh, ignored_params=left_out, **options.arguments())
    options.prefetch(unit.sharded_unit)


def _send_first(comm: Communicator, module: Module, ignored: list[Module], left_out: list[Any]) -> None:
    """Overwrite what is not sharded yet, and not ignored, with what rank 0 has. Collective over ``comm``."""
    without = {id(p) for p in left_out} | {id(b) for m in ignored for b in m.buffers.values()}
    named = [*module.named_parameters(), *module.named_buffers()]
    sent = [(n, t) for n, t in named if id(t) not in without and not isinstance(t, (DTensor, Deferred))]
    check_same(comm, "FullyShardedDataParallel: parameters or buffers", [described(name, t) for name, t in sent])
    send_first(comm, [t for _, t in sent])


def _round_buffers(module: Module, precision: MixedPrecision | None, ignored: list[Module]) -> None:
    if precision is not None:
        for m in module.modules():
            if m not in ignored and not precision.leaves_out(m):
                for buffer in m.buffers.values():
                    buffer.data = precision.round_buffer(buffer.data)
