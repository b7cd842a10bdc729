"""The functional collectives of one tensor that :mod:`hpcdist.dtensor.functional` has: out of place, with gradients."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.autograd import Tensor, apply
from hpcdist.autograd.arrangement import cat, split
from hpcdist.comm import arguments
from hpcdist.comm.reduction import BITWISE
from hpcdist.dtensor import collective
from hpcdist.dtensor.functional_arguments import (
    Group,
    Op,
    group_of,
    has_owners,
    split_sizes,
    tensor_of,
    terms_of,
)
from hpcdist.dtensor.placements import Partial, Replicate, Shard, chunk_sizes
from hpcdist.dtensor.redistribute import redistribute
from hpcdist.errors import explain

__all__ = [
    "all_gather_tensor",
    "all_gather_tensor_autograd",
    "all_to_all_single",
    "all_to_all_single_autograd",
    "permute_tensor",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd",
]


def all_gather_tensor(
    tensor: Tensor, gather_dim: int, group: Group = None, *, sizes: Sequence[int] | None = None
) -> Tensor:
    """Return the tensors of all ranks joined along a dimension: the move from Shard to Replicate.

    Collective over the group; gradients are reduce-scattered.

    Parameters
    ----------
    tensor : Tensor, shape (..., n, ...)
        Extents may differ between ranks along ``gather_dim`` only.
    sizes : sequence of int, optional
        Extent of every rank along ``gather_dim``. Default: all as here.
    """
    comm, x = group_of("all_gather_tensor", group), tensor_of("all_gather_tensor", "tensor", tensor)
    dim = arguments.dimension("all_gather_tensor", gather_dim, x.ndim)
    if sizes is not None:
        return apply(collective.ALL_GATHER, x, comm=comm, dim=dim, sizes=tuple(sizes))
    whole = (*x.shape[:dim], x.shape[dim] * comm.size, *x.shape[dim + 1 :])
    return redistribute(x, Shard(dim), Replicate(), comm, whole)


def reduce_scatter_tensor(
    tensor: Tensor, op: Op, scatter_dim: int, group: Group = None, *, sizes: Sequence[int] | None = None
) -> Tensor:
    """Return this rank's slice of ``tensor``, combined over ranks: the move from Partial to Shard.

    Collective over the group; gradients are all-gathered.

    Parameters
    ----------
    tensor : Tensor, shape (..., n, ...)
        Same shape and dtype on every rank.
    op
        As for :func:`all_reduce`.
    sizes : sequence of int, optional
        Extent of every rank's slice of ``scatter_dim``. Default: ceil(n / size) as long as there are any.
    """
    comm = group_of("reduce_scatter_tensor", group)
    x, how = terms_of("reduce_scatter_tensor", tensor, op)
    dim = arguments.dimension("reduce_scatter_tensor", scatter_dim, x.ndim)
    if sizes is None and how not in BITWISE:
        return redistribute(x, Partial(how.value), Shard(dim), comm, x.shape)
    sizes = tuple(chunk_sizes(x.shape[dim], comm.size) if sizes is None else sizes)
    if has_owners(x, how):
        return split(redistribute(x, Partial(how.value), Replicate(), comm, x.shape), sizes, dim)[comm.rank]
    return apply(collective.REDUCE_SCATTER, x, comm=comm, dim=dim, sizes=sizes, how=how)


def all_to_all_single(
    output: Tensor | None,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
) -> Tensor:
    """Send the i-th piece of ``input`` to rank i; return the pieces from all ranks, one behind the other.

    Collective over the group; gradients go back the same way.

    Parameters
    ----------
    output : Tensor or None
        Of the shape of the result. Not needed where its split sizes are given, or where they are those of the input.
        Left as it is.
    input : Tensor, shape (n, ...)
        The pieces, one behind the other along dimension 0.
    output_split_sizes, input_split_sizes : sequence of int, optional
        Extents of the pieces. Default: all equal.
    """
    verb = "all_to_all_single"
    do = f"{verb}_autograd(x, output_split_sizes, input_split_sizes, group) takes no output"
    comm, x = group_of(verb, group), tensor_of(verb, "input", input, do)
    if not x.ndim:
        raise ValueError(explain(f"{verb}: input", got="no dimension", expected="one that is cut, and maybe more"))
    sends = split_sizes(verb, "input_split_sizes", input_split_sizes, x.shape[0], comm.size)
    if output is not None and (not output.ndim or output.shape[1:] != x.shape[1:]):
        raise ValueError(explain(f"{verb}: shape of output", got=output.shape, expected=("any", *x.shape[1:])))
    extent = output.shape[0] if output is not None else x.shape[0] if output_split_sizes is None else None
    takes = split_sizes(verb, "output_split_sizes", output_split_sizes, extent, comm.size)
    shapes = [(n, *x.shape[1:]) for n in takes]
    return cat(apply(collective.ALL_TO_ALL, *split(x, sends), comm=comm, shapes=shapes))


def all_to_all_single_autograd(
    tensor: Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group: Group = None,
) -> Tensor:
    """Do what :func:`all_to_all_single` does, without an output. Collective over the group."""
    return all_to_all_single(None, tensor, output_split_sizes, input_split_sizes, group)


def permute_tensor(tensor: Tensor, src_dst: Sequence[int], group: Group = None) -> Tensor:
    """Send ``tensor`` to rank ``src_dst[i]`` of the group, i being this one; return what another sends here.

    Collective over the group; gradients go back the same way.

    Parameters
    ----------
    tensor : Tensor
        Same shape and dtype on every rank.
    src_dst : sequence of int
        Each rank of the group, once.
    """
    comm, x = group_of("permute_tensor", group), tensor_of("permute_tensor", "tensor", tensor)
    order = list(src_dst)
    if sorted(order) != list(range(comm.size)):
        expected = f"each of 0 to {comm.size - 1}, once"
        raise ValueError(explain("permute_tensor: src_dst", got=order, expected=expected))
    sends, takes = ([0] * comm.size for _ in range(2))
    sends[order[comm.rank]] = takes[order.index(comm.rank)] = x.size
    return all_to_all_single(None, x.reshape(-1), takes, sends, comm).reshape(x.shape)


all_gather_tensor_autograd = all_gather_tensor
reduce_scatter_tensor_autograd = reduce_scatter_tensor
