"""What the arguments of PyTorch's functions mean here: a group, a rank in it, an array that is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from hpcdist.array import Array, is_array
from hpcdist.comm import arguments
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.init import current
from hpcdist.errors import DistError, explain

__all__ = [
    "GroupLike",
    "NonMember",
    "array",
    "arrays",
    "check_device",
    "known",
    "member",
    "on_root",
    "place",
    "rank_in",
    "written",
]

L = TypeVar("L", bound=Sequence[Any])

DEVICES = ("cpu", "cuda")


class NonMember(NamedTuple):
    """A group, seen from a rank that is not in it: false, and equal to all of its kind.

    Attributes
    ----------
    name : str
        The group's.
    members : tuple of int
        Its global ranks.
    rank : int
        The global rank of this process.
    """

    name: str = ""
    members: Sequence[int] = ()
    rank: int = -1

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonMember)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(NonMember)


GroupLike: TypeAlias = Communicator | NonMember | None
"""What ``group=`` takes: None is the default group."""


def known(verb: str, group: GroupLike) -> Communicator | NonMember:
    """Return the group that is meant, whether or not this rank is in it.

    Raises
    ------
    ValueError
        If none is named and there is no default group.
    TypeError
        If it is no group.
    """
    if group is None:
        group = current()
        if group is None:
            do = "call hpcdist.init() or init_process_group() on every rank first, or name the group"
            raise ValueError(explain(f"{verb}: the default process group has not been initialized", do=do))
    if not isinstance(group, Communicator | NonMember):
        raise TypeError(explain(f"{verb}: group", got=type(group).__name__, expected="a group, or None"))
    return group


def member(verb: str, group: GroupLike) -> Communicator:
    """Return the group that is meant, of which this rank has to be a member.

    Raises
    ------
    DistError
        If it is not.
    """
    found = known(verb, group)
    if isinstance(found, Communicator):
        return found
    what = f"{verb} on group {found.name!r}: rank {found.rank} is not in it"
    do = "call it on members only: elsewhere get_rank(group) is -1"
    raise DistError(explain(what, got=f"rank {found.rank}", expected=f"one of {list(found.members)}", do=do))


def place(
    verb: str, comm: Communicator, name: str, rank: int | None, group_rank: int | None, default: int | None = None
) -> int:
    """Return the rank in ``comm`` of a peer that is given by its global rank or by its rank in the group.

    Raises
    ------
    ValueError
        If both are given, or none is and there is no default, or it is not in the group.
    """
    if rank is not None and group_rank is not None:
        expected = "one of them"
        raise ValueError(explain(f"{verb}: {name} and group_{name}", got=f"{rank} and {group_rank}", expected=expected))
    if group_rank is not None:
        arguments.check_rank(verb, f"group_{name}", group_rank, comm.size)
        return group_rank
    rank = default if rank is None else rank
    if rank is None:
        raise ValueError(explain(f"{verb}: {name}", expected=f"a global rank, or group_{name}, a rank of the group"))
    return rank_in(verb, comm, rank, name)


def rank_in(verb: str, group: Communicator | NonMember, rank: int, name: str = "rank") -> int:
    """Return the rank in a group of a global rank; ValueError if it is not in it."""
    rank = arguments.whole(verb, name, rank)
    if rank not in group.members:
        expected = f"a global rank of group {group.name!r}: {list(group.members)}"
        raise ValueError(explain(f"{verb}: {name}", got=rank, expected=expected))
    return group.members.index(rank)


def array(verb: str, name: str, x: Any) -> Array:
    """Return the array that is meant: ``x``, or the one that it has as ``data``.

    Raises
    ------
    TypeError
        If there is none.
    """
    if is_array(x):
        found: Array = x
        return found
    data: Any = getattr(x, "data", None)
    if not is_array(data):
        raise TypeError(explain(f"{verb}: {name}", got=type(x).__name__, expected="an array or a Tensor"))
    return data


def written(verb: str, name: str, x: Any) -> Array:
    """Return the array that is meant, which has to be writeable.

    Raises
    ------
    ValueError
        If it is not.
    """
    found = array(verb, name, x)
    if not getattr(found.flags, "writeable", True):
        raise ValueError(explain(f"{verb}: {name}", got="a read-only array", expected="one that takes the result"))
    return found


def arrays(verb: str, name: str, xs: Any, size: int, *, write: bool = False) -> list[Array]:
    """Return the arrays of a list with one a rank.

    Raises
    ------
    TypeError, ValueError
        If it is no list, or has another length, or one of its arrays is not right.
    """
    if not isinstance(xs, list | tuple):
        raise TypeError(explain(f"{verb}: {name}", got=type(xs).__name__, expected="a list of arrays, one a rank"))
    if len(xs) != size:
        raise ValueError(explain(f"{verb}: {name}", got=f"{len(xs)} arrays", expected=f"{size}, one a rank"))
    take = written if write else array
    return [take(verb, f"{name}[{rank}]", x) for rank, x in enumerate(xs)]


def on_root(verb: str, name: str, xs: L | None, comm: Communicator, root: int) -> L | None:
    """Return the list that the root gives; None elsewhere, where none, or an empty one, is given.

    Raises
    ------
    ValueError
        If the root gives none, or another rank gives one.
    """
    if comm.rank != root and not xs:
        return None
    if xs is None or comm.rank != root:
        got, expected = "None" if xs is None else "a list", "a list on the root, None elsewhere"
        text = f"{verb}: {name} on rank {comm.members[comm.rank]}, root {comm.members[root]}"
        raise ValueError(explain(text, got=got, expected=expected))
    return xs


def check_device(verb: str, device: object) -> None:
    """Refuse what is no device; devices are accepted and dropped, as an array knows where it is."""
    if device is not None and str(device).partition(":")[0] not in DEVICES:
        raise ValueError(explain(f"{verb}: device", got=device, expected=" or ".join(DEVICES), do="leave it out"))
