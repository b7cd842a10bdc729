"""Groups of some ranks, by PyTorch's functions.

A group comes into being where its members meet: other ranks may call these functions, as PyTorch wants all to, or leave
it. They get a :class:`~hpcdist.comm.addressing.NonMember`, which answers questions; collectives on it raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from hpcdist.comm import arguments
from hpcdist.comm.addressing import GroupLike, NonMember, check_device, member
from hpcdist.comm.availability import check_backend
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.process_group import limited, refuse, register
from hpcdist.errors import explain

__all__ = ["new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group"]

Group = Communicator | NonMember


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: float | timedelta | None = None,
    backend: str | None = None,
    pg_options: None = None,
    use_local_synchronization: bool = True,  # noqa: ARG001 (always so)
    group_desc: str | None = None,
    device_id: object = None,
    sort_ranks: bool = True,
) -> Group:
    """Return the group of some global ranks. Collective over ``ranks``: only they need call it.

    Parameters
    ----------
    ranks : sequence of int, optional
        Global ranks. Default: all of the default group.
    timeout : float or timedelta, optional
        Limit of every wait, in seconds, also of this one. Default: that of the default group.
    backend, pg_options, device_id
        As for :func:`init_process_group`.
    use_local_synchronization : bool
        Accepted: ranks outside the group never take part.
    group_desc : str, optional
        Its name in messages.
    sort_ranks : bool
        Whether the group's order is that of the numbers, or of the list.

    Raises
    ------
    ValueError
        If a rank is none of the default group, or comes twice.
    DistTimeoutError
        On members, if others do not come.
    """
    world = member("new_group", None)
    check_backend("new_group", backend)
    check_device("new_group", device_id)
    refuse("new_group", pg_options=pg_options)
    wanted = _listed("new_group: ranks", world.members if ranks is None else ranks)
    places = [list(world.members).index(rank) if rank in world.members else -1 for rank in wanted]
    _check("new_group: ranks", [places], [wanted], world.members)
    return _form(world, sorted(places) if sort_ranks else places, timeout, group_desc)


def split_group(
    parent_pg: GroupLike = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: float | timedelta | None = None,
    pg_options: None = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Group:
    """Return that of several new groups which this rank is in, their ranks in the order given.

    Collective over the new group's ranks.

    Parameters
    ----------
    parent_pg : optional
        Default: the default group.
    split_ranks : sequence of sequence of int
        Ranks of ``parent_pg``, each at most once.
    timeout, pg_options, group_desc, backend
        As for :func:`new_group`.
    """
    parent = member("split_group", parent_pg)
    check_backend("split_group", backend)
    refuse("split_group", pg_options=pg_options)
    lists = [_listed("split_group: split_ranks", ranks) for ranks in split_ranks or ()]
    _check("split_group: split_ranks", lists, lists, range(parent.size))
    return _subgroups(parent, lists, timeout, group_desc)[0]


def new_subgroups(
    group_size: int | None = None,
    group: GroupLike = None,
    timeout: float | timedelta | None = None,
    backend: str | None = None,
    pg_options: None = None,
    group_desc: str | None = None,
) -> tuple[Group, list[Group]]:
    """Cut a group into groups of neighbours; return the one that this rank is in, and all.

    Collective over ``group``.

    Parameters
    ----------
    group_size : int, optional
        Ranks of each; the last one may have fewer. Default: a group is the ranks of a node.
    group, timeout, backend, pg_options, group_desc
        As for :func:`split_group`.
    """
    parent = member("new_subgroups", group)
    check_backend("new_subgroups", backend)
    refuse("new_subgroups", pg_options=pg_options)
    if group_size is not None and not 1 <= group_size <= parent.size:
        expected = f"1 to {parent.size}, the ranks there are"
        raise ValueError(explain("new_subgroups: group_size", got=group_size, expected=expected))
    if group_size is None:
        lists = _by_node(parent)
    else:
        lists = [list(range(parent.size))[start : start + group_size] for start in range(0, parent.size, group_size)]
    return _subgroups(parent, lists, timeout, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: float | timedelta | None = None,
    backend: str | None = None,
    pg_options: None = None,
    group_desc: str | None = None,
) -> tuple[Group, list[Group]]:
    """Form groups of the default group's ranks; return the one that this rank is in, and all.

    Collective over the ranks of each group; their order is that of the list.

    Parameters
    ----------
    ranks_per_subgroup_list : sequence of sequence of int
        Global ranks, each at most once.
    timeout, backend, pg_options, group_desc
        As for :func:`new_group`.
    """
    world = member("new_subgroups_by_enumeration", None)
    check_backend("new_subgroups_by_enumeration", backend)
    refuse("new_subgroups_by_enumeration", pg_options=pg_options)
    members = list(world.members)
    wanted = [_listed("new_subgroups_by_enumeration: ranks", ranks) for ranks in ranks_per_subgroup_list]
    lists = [[members.index(rank) if rank in members else -1 for rank in ranks] for ranks in wanted]
    _check("new_subgroups_by_enumeration: ranks", lists, wanted, members)
    return _subgroups(world, lists, timeout, group_desc)


def _by_node(parent: Communicator) -> list[list[int]]:
    return [[rank for rank, node in enumerate(parent.nodes) if node == first] for first in dict.fromkeys(parent.nodes)]


def _subgroups(
    parent: Communicator, lists: Sequence[Sequence[int]], timeout: float | timedelta | None, name: str | None
) -> tuple[Group, list[Group]]:
    """Form the group that this rank is in; return it, and one for each list. Collective over its ranks."""
    groups = [_form(parent, ranks, timeout, name) for ranks in lists]
    mine = next((group for group in groups if isinstance(group, Communicator)), None)
    return mine or NonMember(f"{parent.name}/none", (), parent.members[parent.rank]), groups


def _form(parent: Communicator, places: Sequence[int], timeout: float | timedelta | None, name: str | None) -> Group:
    """Form the group of these ranks of ``parent``, or a stand-in for it. Collective over them."""
    if parent.rank not in places:
        members = tuple(parent.members[place] for place in places)
        return NonMember(name or f"{parent.name}/{list(places)}", members, parent.members[parent.rank])
    with limited(parent, timeout):
        made = parent.create_group(places)
    made.name = name or made.name
    register(parent, made)
    return made


def _listed(what: str, ranks: object) -> list[int]:
    """Return a list of ranks; TypeError if it is none."""
    if isinstance(ranks, str) or not isinstance(ranks, Iterable):
        raise TypeError(explain(what, got=repr(ranks), expected="a list of ranks"))
    return [arguments.whole(what, "rank", rank) for rank in ranks]


def _check(what: str, lists: Sequence[Sequence[int]], shown: Sequence[Sequence[int]], known: Sequence[int]) -> None:
    """Refuse lists that are empty, name a rank twice, or one that is not there."""
    places = [place for places in lists for place in places]
    if not lists or not all(lists) or len(set(places)) != len(places) or not all(0 <= p < len(known) for p in places):
        expected = f"ranks of {list(known)}, each at most once, none of the lists empty"
        got = [list(ranks) for ranks in shown]
        raise ValueError(explain(what, got=got[0] if len(got) == 1 else got, expected=expected))
