"""DistributedDataParallel: torch's class around :func:`replicate`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from hpcdist.comm import Communicator, DeviceMesh
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.parallel.replica import Replica
from hpcdist.parallel.replicate import BUCKET_BYTES, replicate
from hpcdist.parallel.unused import Unused

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(Module):
    """A module whose gradients are averaged over ranks in backward, while it runs.

    Calls ``module``. Names of parameters and buffers are those of ``module``, without torch's ``module.``: a state
    dict has the same keys under every strategy, and torch's are understood. A parameter that gets no gradient is never
    an error: others wait for no one. Collective over the ranks, as are its first forward of a step where there are
    buffers, and its backward.

    Parameters
    ----------
    module : Module
        The same on every rank; else the same error on every rank. Deferred parameters are drawn.
    device_ids, output_device, dim
        Of torch; a rank has one device here: None (or empty), None and 0.
    broadcast_buffers : bool
        Send buffers of rank 0 to all in the first forward, while training, after each reduction.
    init_sync : bool
        Send parameters and buffers of rank 0 to all now. Whether they fit is checked in any case.
    process_group : Communicator, optional
        The ranks; default: all.
    bucket_cap_mb : float, optional
        MiB that are reduced together, at least; default 4, from measurements.
    find_unused_parameters : bool
        True: do not warn of parameters that get no gradient. They are found in any case.
    gradient_as_bucket_view, static_graph : bool
        Of torch, and without effect: gradients always are views of what is reduced, and graphs are free to change.
    device_mesh : DeviceMesh of one axis, optional
        The ranks, instead of ``process_group``.
    mixed_precision : None
        Of torch; ``fully_shard`` has it.

    Attributes
    ----------
    module : Module
        What was given.
    replica : Replica
        What reduces its gradients.

    Raises
    ------
    ValueError, RuntimeError
        See :func:`replicate`.
    """

    module: Module
    replica: Replica

    def __init__(
        self,
        module: Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Communicator | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,  # noqa: ARG002 (always)
        static_graph: bool = False,  # noqa: ARG002 (needs not be told)
        device_mesh: DeviceMesh | None = None,
        mixed_precision: Any = None,
    ) -> None:
        super().__init__()
        ranks = _ranks(process_group, device_mesh)
        _refuse(
            device_ids=list(device_ids or ()), output_device=output_device, dim=dim, mixed_precision=mixed_precision
        )
        replica = replicate(
            module,
            ranks,
            bucket_bytes=BUCKET_BYTES if bucket_cap_mb is None else int(bucket_cap_mb * 2**20),
            init_sync=init_sync,
            broadcast_buffers=broadcast_buffers is None or broadcast_buffers,
            warns_of_unused=not find_unused_parameters,
        )
        self.module, self.replica = module, replica

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        return self.module(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        """Copy the module inside, for those who leave hooks out (AveragedModel)."""
        return copy.deepcopy(self.module, memo)

    # ---- names
    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (name, module) of this one and, under the names that they have without it, of those inside."""
        yield prefix, self
        yield from self.module.named_modules(prefix)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Copy values into parameters and buffers; names may begin with torch's ``module.``."""
        own = {name for name, _ in self._named_tensors()}
        clean = {name if name in own else name.removeprefix("module."): value for name, value in state.items()}
        super().load_state_dict(clean, strict)

    # ---- gradients
    def no_sync(self) -> AbstractContextManager[None]:
        """Only add to gradients in a block: the next backward outside reduces the sum; see :meth:`Replica.no_sync`."""
        return self.replica.no_sync()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Say whether the next backward reduces gradients, or only adds to them."""
        self.replica.set_requires_gradient_sync(requires_gradient_sync)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide the sum over ranks by ``factor``; the default is the number of ranks."""
        self.replica.set_gradient_divide_factor(factor)

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Let ``hook(state, bucket)`` bring gradients together; see :meth:`Replica.register_comm_hook`.

        Collective over the ranks.
        """
        self.replica.register_comm_hook(state, hook)

    def turns(self, of: int) -> range:
        """Return which of ``of`` micro-batches this rank works on, in order."""
        return self.replica.turns(of)

    def micro_batch(self, index: int, *, of: int) -> AbstractContextManager[None]:
        """Run the forward and the backward of one of :meth:`turns` in a block: the last one reduces the sum."""
        return self.replica.micro_batch(index, of=of)

    def unused_parameters(self) -> Unused:
        """Return the names of parameters that got no gradient; see :meth:`Replica.unused_parameters`."""
        return self.replica.unused_parameters()


def _ranks(process_group: Communicator | None, device_mesh: DeviceMesh | None) -> Communicator | DeviceMesh:
    if process_group is not None and device_mesh is not None:
        what = "DistributedDataParallel: process_group and device_mesh"
        raise ValueError(explain(what, got="both", expected="one of them"))
    given = process_group or device_mesh
    if given is not None:
        return given
    from hpcdist.comm.init import get_default

    return get_default()


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value:
            do = "leave it out: each rank has one device, and its own part of the data"
            if name == "mixed_precision":
                do = "use fully_shard(module, mp_policy=...), which has it"
            raise ValueError(explain(f"DistributedDataParallel: {name}", got=value, do=do))
