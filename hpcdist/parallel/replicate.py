"""replicate: data parallelism with whole parameters on every rank (DDP)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.comm import Communicator, DeviceMesh
from hpcdist.dtensor.tensor import local_of
from hpcdist.errors import explain
from hpcdist.nn import Module, ModuleList
from hpcdist.parallel.alike import check_same, described
from hpcdist.parallel.replica import Replica
from hpcdist.parallel.tree_replica import TreeReplica

__all__ = ["BUCKET_BYTES", "replicate"]

BUCKET_BYTES = 4 << 20


def replicate(
    module: Module,
    mesh: DeviceMesh | Communicator,
    *,
    units: Sequence[Module] | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    init_sync: bool = True,
    broadcast_buffers: bool = True,
    warns_of_unused: bool = True,
) -> Replica:
    """Train the same parameters on every rank: gradients are averaged in backward, while it runs.

    Collective over the mesh. Moves about ``2 (size - 1) / size`` of the gradients' bytes per rank and step.
    Deferred parameters are drawn. What is frozen or unfrozen later, on every rank alike, counts from the next forward
    on.

    In reproducible runs (``hd.init(reproducible=True)``) gradients are added up by a tree over micro-batches, and bits
    do not depend on the number of ranks; run each micro-batch in a block of ``micro_batch``: see :class:`TreeReplica`.

    Parameters
    ----------
    module : Module
        The same on every rank; its names do not change.
    mesh : DeviceMesh of one dimension, or Communicator
        The ranks.
    units : sequence of Module, optional
        Modules whose gradients become complete together, in the order in which their forwards begin; ``module`` itself
        takes what is left. Default: the items of every outermost ``ModuleList`` or ``Sequential``.
    bucket_bytes : int
        Units are reduced together until they have so many bytes.
    init_sync : bool
        Send parameters and buffers of rank 0 to all. False: they are the same already.
    broadcast_buffers : bool
        Send buffers of rank 0 to all again in the first forward, while training, after each reduction: one message a
        dtype.
    warns_of_unused : bool
        Log a warning, once, that names parameters that got a gradient on no rank.

    Raises
    ------
    ValueError, RuntimeError
        The same on every rank: if nothing needs gradients, parameters differ between ranks, or another strategy has
        the module already.
    """
    comm = mesh if isinstance(mesh, Communicator) else mesh.get_group()
    with comm.agreed():
        _check_usable(module, bucket_bytes)
    check_same(comm, "replicate: parameters", [described(*named) for named in module.named_parameters()])
    check_same(comm, "replicate: buffers", [described(*named) for named in module.named_buffers()])
    _check_trains(module)
    kind = TreeReplica if comm.reproducible else Replica
    return kind(
        module,
        comm,
        _repeated(module) if units is None else [m for m in units if m is not module],
        bucket_bytes=bucket_bytes,
        init_sync=init_sync,
        broadcast_buffers=broadcast_buffers,
        warns_of_unused=warns_of_unused,
    )


def _repeated(module: Module) -> list[Module]:
    """Return the items of the outermost lists of modules in ``module``, in order."""
    if isinstance(module, ModuleList):
        return list(module)
    return [item for child in module.children.values() for item in _repeated(child)]


# ---------------------------------------------------------------- what is refused
def _check_usable(module: Any, bucket_bytes: int) -> None:
    if not isinstance(module, Module):
        raise TypeError(explain("replicate: module", got=type(module).__name__, expected="a Module"))
    if not bucket_bytes > 0:
        raise ValueError(explain("replicate: bucket_bytes", got=bucket_bytes, expected="a number above 0"))
    for name, p in module.named_parameters():
        if local_of(p).home is not None:
            do = "replicate the whole once; free() what replicate returned first"
            raise RuntimeError(explain(f"replicate: {name} is replicated already", do=do))
    for name, part in module.named_modules():
        if "sharded_unit" in part.__dict__:
            do = "give fully_shard a mesh of two axes: copies, shards"
            raise RuntimeError(explain(f"replicate: {name or 'the module'} is sharded already", do=do))


def _check_trains(module: Module) -> None:
    if not any(p.requires_grad for p in module.parameters()):
        do = "pass one that trains"
        raise ValueError(explain("replicate: module", got="no parameter that needs a gradient", do=do))
