"""What the arguments of the functional collectives mean: a group, a tensor, a list of them, a combination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from hpcdist.array import is_array
from hpcdist.autograd import Tensor, is_grad_enabled
from hpcdist.comm import arguments
from hpcdist.comm.addressing import NonMember, member
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.init import get_default
from hpcdist.comm.mesh import DeviceMesh
from hpcdist.comm.reduce_op import PremulSum, ReduceOp
from hpcdist.comm.reducing import combination
from hpcdist.errors import explain

__all__ = [
    "Group",
    "Op",
    "Shape",
    "group_of",
    "has_owners",
    "shapes_of",
    "split_sizes",
    "tensor_of",
    "tensors_of",
    "terms_of",
]

Group: TypeAlias = Communicator | NonMember | DeviceMesh | tuple[DeviceMesh, int | str] | None
Op: TypeAlias = ReduceOp | PremulSum | str
Shape: TypeAlias = tuple[int, ...]


def group_of(verb: str, group: Any) -> Communicator:
    """Return the communicator that is meant, of which this rank has to be a member.

    Raises
    ------
    DistError
        If it is not.
    TypeError
        If it is no group.
    """
    if group is None:
        return get_default()
    if isinstance(group, DeviceMesh):
        return group.get_group()
    if isinstance(group, Communicator | NonMember):
        return member(verb, group)
    match group:
        case (DeviceMesh() as mesh, axis):
            return mesh.get_group(axis)
    expected = "a communicator, a mesh, or a mesh and one of its axes"
    raise TypeError(explain(f"{verb}: group", got=repr(group), expected=expected))


def tensor_of(verb: str, name: str, x: Any, do: str | None = None) -> Tensor:
    """Return the tensor that is meant; an array is one without gradients.

    Raises
    ------
    TypeError
        For what is placed on a mesh as a whole, and for anything else, saying what to ``do``.
    """
    if hasattr(type(x), "__apply__"):
        remedy = "pass its to_local(), or call its redistribute()"
        raise TypeError(explain(f"{verb}: {name}", got=type(x).__name__, expected="what this rank holds", do=remedy))
    if isinstance(x, Tensor):
        return x
    if not is_array(x):
        raise TypeError(explain(f"{verb}: {name}", got=type(x).__name__, expected="a Tensor or an array", do=do))
    return Tensor(x)


def tensors_of(verb: str, name: str, xs: Any, size: int) -> list[Tensor]:
    """Return the tensors of a list with one a rank, all of one dtype.

    Raises
    ------
    TypeError, ValueError
        If it is no such list.
    """
    if not isinstance(xs, list | tuple):
        raise TypeError(explain(f"{verb}: {name}", got=type(xs).__name__, expected="a list of tensors, one a rank"))
    if len(xs) != size:
        raise ValueError(explain(f"{verb}: {name}", got=f"{len(xs)} tensors", expected=f"{size}, one a rank"))
    found = [tensor_of(verb, f"{name}[{rank}]", x) for rank, x in enumerate(xs)]
    dtypes = sorted({str(x.dtype) for x in found})
    if len(dtypes) > 1:
        raise TypeError(explain(f"{verb}: dtypes of {name}", got=", ".join(dtypes), expected="one for all"))
    return found


def terms_of(verb: str, tensor: Any, op: Op) -> tuple[Tensor, ReduceOp]:
    """Return what is combined, and how: PREMUL_SUM multiplies first.

    Raises
    ------
    ValueError
        If there is no such combination, or PREMUL_SUM is to combine integers.
    """
    x = tensor_of(verb, "tensor", tensor)
    if not isinstance(op, PremulSum):
        return x, combination(verb, op)
    if x.dtype.kind in "biu":
        do = "multiply, and reduce with ReduceOp.SUM"
        raise ValueError(explain(f"{verb}: premul_sum", got=x.dtype, expected="a floating or complex dtype", do=do))
    return x * op.factor, ReduceOp.SUM


def has_owners(x: Tensor, op: ReduceOp) -> bool:
    """Say whether gradients are wanted of a combination that is not linear: they go to ranks that own values."""
    return op in (ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PRODUCT) and x.requires_grad and is_grad_enabled()


def shapes_of(verb: str, x: Tensor, shapes: Sequence[Sequence[int]] | None, comm: Communicator) -> list[Shape]:
    """Return the shape of the tensor that each rank brings: as that of this one, or as given.

    Raises
    ------
    ValueError
        If there is not one a rank, or this rank's is another.
    """
    if shapes is None:
        return [x.shape] * comm.size
    if len(shapes) != comm.size:
        raise ValueError(explain(f"{verb}: shapes", got=f"{len(shapes)} of them", expected=f"{comm.size}, one a rank"))
    found = [tuple(arguments.whole(verb, "shapes", n) for n in shape) for shape in shapes]
    if found[comm.rank] != x.shape:
        raise ValueError(explain(f"{verb}: tensor, by shapes[{comm.rank}]", got=x.shape, expected=found[comm.rank]))
    return found


def split_sizes(verb: str, name: str, sizes: Sequence[int] | None, extent: int | None, size: int) -> tuple[int, ...]:
    """Return the extents of one piece a rank: ``sizes``, which add up to ``extent`` if that is known, or all equal.

    Raises
    ------
    ValueError
        If they do not, or there is another number of them, or ``extent`` has no equal pieces.
    """
    if sizes is None:
        assert extent is not None
        if extent % size:
            do = f"pass {name}, the extent of every piece"
            raise ValueError(explain(f"{verb}: dimension 0 does not divide by {size} ranks", got=extent, do=do))
        return (extent // size,) * size
    parts = arguments.extents(f"{verb}: {name}", sizes, 0, size)
    if extent is not None and sum(parts) != extent:
        raise ValueError(explain(f"{verb}: {name} {list(parts)}", got=f"their sum {sum(parts)}", expected=extent))
    return parts
