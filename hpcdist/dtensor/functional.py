"""Collectives that gradients flow through (torch.distributed.nn.functional, and torch's functional collectives).

All are out of place: arguments are left as they are, and results are new tensors. Where PyTorch wants an array for the
result, only its shape is read, and None will do where the shape is known without it. The gradient is the transposed
collective: what gathering is to values, summing and scattering is to their gradients. So each rank is taken to use
what it gets in its own way, as with a :class:`~hpcdist.dtensor.Replicate`: gradients of all ranks add up, also where
all computed the same loss from the same values.

Collective in backward as in forward: tensors need gradients on all ranks of the group or on none, and the loss has to
depend on the result on every rank; a rank that gets nothing has zeros for that. Maxima and minima send their gradient
to the first rank that holds the value; a product that needs gradients is refused.

Throughout, ``group`` is a communicator, a mesh of one axis, or a pair of a mesh and one of its axes; default: the
default communicator. A rank such as ``src`` is a global one, as in PyTorch, and ``group_src`` one of the group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcdist.autograd import Tensor, apply
from hpcdist.autograd.arrangement import cat, split
from hpcdist.comm.addressing import place
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.reducing import joinable
from hpcdist.comm.reduction import BITWISE
from hpcdist.dtensor import collective
from hpcdist.dtensor.functional_arguments import (
    Group,
    Op,
    Shape,
    group_of,
    has_owners,
    shapes_of,
    tensor_of,
    tensors_of,
    terms_of,
)
from hpcdist.dtensor.functional_tensor import (
    all_gather_tensor,
    all_gather_tensor_autograd,
    all_to_all_single,
    all_to_all_single_autograd,
    permute_tensor,
    reduce_scatter_tensor,
    reduce_scatter_tensor_autograd,
)
from hpcdist.dtensor.placements import Partial, Replicate
from hpcdist.dtensor.redistribute import redistribute
from hpcdist.errors import explain

__all__ = [
    "all_gather",
    "all_gather_tensor",
    "all_gather_tensor_autograd",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_single_autograd",
    "broadcast",
    "gather",
    "permute_tensor",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd",
    "scatter",
]


# ---- with all ranks
def all_reduce(tensor: Tensor, op: Op = ReduceOp.SUM, group: Group = None) -> Tensor:
    """Return ``tensor`` of all ranks, combined element by element. Collective over the group; gradients likewise.

    Parameters
    ----------
    tensor : Tensor
        Same shape and dtype on every rank.
    op : ReduceOp, str or ``ReduceOp.PREMUL_SUM(factor)``
        AVG and PREMUL_SUM need a floating or complex dtype.

    Raises
    ------
    ValueError
        For a product that needs gradients.
    """
    comm = group_of("all_reduce", group)
    x, how = terms_of("all_reduce", tensor, op)
    if how in BITWISE:
        return Tensor(comm.all_reduce(x.data, how))
    return redistribute(x, Partial(how.value), Replicate(), comm, x.shape)


def all_gather(tensor: Tensor, group: Group = None, *, shapes: Sequence[Shape] | None = None) -> tuple[Tensor, ...]:
    """Return the tensor of every rank, in rank order. Collective over the group; gradients are reduce-scattered.

    Parameters
    ----------
    tensor : Tensor
        Of one dtype on all ranks.
    shapes : sequence of tuple, optional
        Shape on every rank. Default: all as here.
    """
    comm, x = group_of("all_gather", group), tensor_of("all_gather", "tensor", tensor)
    known = shapes_of("all_gather", x, shapes, comm)
    if shapes is None:
        parts = split(all_gather_tensor(x.reshape((1, *x.shape)), 0, comm), 1)
    else:
        sizes = [math.prod(shape) for shape in known]
        parts = split(all_gather_tensor(x.reshape(-1), 0, comm, sizes=sizes), sizes)
    return tuple(part.reshape(shape) for part, shape in zip(parts, known, strict=True))


def reduce_scatter(
    output: Tensor | None, input_list: Sequence[Tensor], op: Op = ReduceOp.SUM, group: Group = None
) -> Tensor:
    """Return this rank's one of the tensors in a list, combined over ranks.

    Collective over the group; gradients are all-gathered.

    Parameters
    ----------
    output : Tensor or None
        Its shape, if it is given, must be that of the result. Left as it is.
    input_list : sequence of Tensor
        One a rank; shapes may differ, and are the same on every rank.
    op
        As for :func:`all_reduce`.
    """
    comm = group_of("reduce_scatter", group)
    parts = tensors_of("reduce_scatter", "input_list", input_list, comm.size)
    mine = parts[comm.rank].shape
    if output is not None and output.shape != mine:
        raise ValueError(explain("reduce_scatter: shape of output", got=output.shape, expected=mine))
    rows = parts if joinable([part.data for part in parts]) else [part.reshape(-1) for part in parts]
    sizes = [row.shape[0] for row in rows]
    return reduce_scatter_tensor(cat(rows), op, 0, comm, sizes=sizes).reshape(mine)


def all_to_all(
    output_tensor_list: Sequence[Tensor] | None, input_tensor_list: Sequence[Tensor], group: Group = None
) -> tuple[Tensor, ...]:
    """Send the i-th tensor of a list to rank i; return what every rank sent to this one, in rank order.

    Collective over the group; gradients go back the same way.

    Parameters
    ----------
    output_tensor_list : sequence of Tensor, or None
        Of the shape of what each rank sends to this one. Default: as what is sent to it. Left as it is.
    input_tensor_list : sequence of Tensor
        One a rank, of one dtype; shapes may differ.
    """
    comm = group_of("all_to_all", group)
    parts = tensors_of("all_to_all", "input_tensor_list", input_tensor_list, comm.size)
    outs = parts
    if output_tensor_list is not None:
        outs = tensors_of("all_to_all", "output_tensor_list", output_tensor_list, comm.size)
    return tuple(apply(collective.ALL_TO_ALL, *parts, comm=comm, shapes=[out.shape for out in outs]))


# ---- with one rank
def broadcast(tensor: Tensor, src: int | None = None, group: Group = None, *, group_src: int | None = None) -> Tensor:
    """Return the tensor of one rank. Collective over the group; gradients are summed there, others get zeros.

    Parameters
    ----------
    tensor : Tensor
        Same shape and dtype on every rank; its values count on the source only.
    src, group_src : int
        The source: its global rank, or its rank in the group.
    """
    comm, x = group_of("broadcast", group), tensor_of("broadcast", "tensor", tensor)
    return apply(collective.BROADCAST, x, comm=comm, root=place("broadcast", comm, "src", src, group_src))


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Op = ReduceOp.SUM,
    group: Group = None,
    *,
    group_dst: int | None = None,
) -> Tensor:
    """Return ``tensor`` of all ranks, combined, on one rank, and zeros on the others.

    Collective over the group; gradients are broadcast from there.

    Parameters
    ----------
    tensor, op
        As for :func:`all_reduce`.
    dst, group_dst : int
        The receiver: its global rank, or its rank in the group.
    """
    comm = group_of("reduce", group)
    root = place("reduce", comm, "dst", dst, group_dst)
    x, how = terms_of("reduce", tensor, op)
    if has_owners(x, how):
        whole = redistribute(x, Partial(how.value), Replicate(), comm, x.shape)
        return apply(collective.ON_ROOT, whole, is_root=comm.rank == root)
    return apply(collective.REDUCE, x, comm=comm, root=root, how=how)


def gather(
    tensor: Tensor,
    dst: int | None = None,
    group: Group = None,
    *,
    group_dst: int | None = None,
    shapes: Sequence[Shape] | None = None,
) -> tuple[Tensor, ...]:
    """Return the tensor of every rank, in rank order, on one rank, and zeros of the same shapes on the others.

    Collective over the group; gradients are scattered from there.

    Parameters
    ----------
    tensor, shapes
        As for :func:`all_gather`.
    dst, group_dst : int
        The receiver: its global rank (default: 0), or its rank in the group.
    """
    comm, x = group_of("gather", group), tensor_of("gather", "tensor", tensor)
    root = place("gather", comm, "dst", dst, group_dst, default=0)
    return tuple(apply(collective.GATHER, x, comm=comm, root=root, shapes=shapes_of("gather", x, shapes, comm)))


def scatter(
    tensors: Sequence[Tensor], src: int | None = None, group: Group = None, *, group_src: int | None = None
) -> Tensor:
    """Return this rank's one of the tensors that one rank has.

    Collective over the group; gradients are gathered there, others get zeros.

    Parameters
    ----------
    tensors : sequence of Tensor
        One a rank, of one dtype; shapes may differ. Given on every rank: values count on the source only, elsewhere
        the one of this rank says what comes.
    src, group_src : int
        The source: its global rank (default: 0), or its rank in the group.
    """
    comm = group_of("scatter", group)
    parts = tensors_of("scatter", "tensors", tensors, comm.size)
    return apply(collective.SCATTER, *parts, comm=comm, root=place("scatter", comm, "src", src, group_src, default=0))
