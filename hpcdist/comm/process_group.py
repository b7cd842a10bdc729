"""The process group in PyTorch's sense: the default group, the groups made of it, and their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from hpcdist.comm.addressing import GroupLike, NonMember, check_device, member
from hpcdist.comm.availability import check_backend
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.future import seconds
from hpcdist.comm.init import DEFAULT_TIMEOUT_S, current, forget, init
from hpcdist.errors import explain

__all__ = [
    "GroupMember",
    "ProcessGroup",
    "default_pg_timeout",
    "destroy_process_group",
    "get_pg_count",
    "group",
    "init_process_group",
    "is_initialized",
    "limited",
    "refuse",
    "register",
]

ProcessGroup = Communicator

default_pg_timeout = timedelta(seconds=DEFAULT_TIMEOUT_S)

_made: WeakKeyDictionary[Communicator, list[Communicator]] = WeakKeyDictionary()
"""For each default group the groups that were made of it and not destroyed, in order."""


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: float | timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: None = None,
    group_name: str = "",
    pg_options: None = None,
    device_id: object = None,
    *,
    comm: Any = None,
    **options: Any,
) -> Communicator:
    """Make the default group: :func:`hpcdist.init` in PyTorch's words. Collective over its ranks.

    Parameters
    ----------
    backend : str, optional
        "mpi"; there is no other.
    init_method, store, pg_options
        "env://" or nothing: MPI's launcher has brought the ranks together.
    timeout : float or timedelta, optional
        Limit of every wait, in seconds.
    world_size, rank : int
        Where given, have to be what the launcher says.
    group_name : str
        Shown in messages.
    device_id : optional
        "cpu" or "cuda", dropped: an array knows where it is.
    comm, **options
        As for :func:`hpcdist.init`.

    Raises
    ------
    DistBackendError, ValueError
        If it is called twice, or arguments do not fit.
    """
    if is_initialized():
        do = "call destroy_process_group() first, or leave it out after hpcdist.init()"
        raise ValueError(explain("init_process_group: the default group has been made already", do=do))
    check_backend("init_process_group", backend)
    check_device("init_process_group", device_id)
    method = None if init_method == "env://" else init_method
    refuse("init_process_group", init_method=method, store=store, pg_options=pg_options)
    made = init(comm, timeout_s=seconds(timeout) or DEFAULT_TIMEOUT_S, **options)
    made.name = group_name or made.name
    try:
        with made.agreed():
            _check_place(made, world_size, rank)
    except ValueError:
        forget()
        raise
    return made


def _check_place(made: Communicator, world_size: int, rank: int) -> None:
    if world_size not in (-1, made.size) or rank not in (-1, made.rank):
        text, got = "init_process_group: world_size and rank", f"{world_size} and {rank}"
        do = "leave them out: the launcher says"
        raise ValueError(explain(text, got=got, expected=f"{made.size} and {made.rank}", do=do))


def is_initialized() -> bool:
    """Say whether there is a default group."""
    return current() is not None


def destroy_process_group(group: GroupLike = None) -> None:
    """Free a group; without one, all that were made here and the default one. Collective over the group.

    A group that has been destroyed, or was never made, is nothing to do.
    """
    world = current()
    if isinstance(group, NonMember) or (world is None and group is None):
        return
    if world is not None and (group is None or group is world):
        for part in [*_made.pop(world, []), world]:
            part.free()
        forget()
    else:
        doomed = member("destroy_process_group", group)
        for parts in _made.values():
            if doomed in parts:
                parts.remove(doomed)
        doomed.free()


def register(parent: Communicator, part: Communicator) -> None:
    """Remember that ``part`` was made, of the default group or of ``parent``."""
    _made.setdefault(current() or parent, []).append(part)


def get_pg_count() -> int:
    """Return how many groups this rank has: the default one and those made of it, as far as not destroyed."""
    world = current()
    return 0 if world is None else 1 + len(_made.get(world, []))


@contextmanager
def limited(comm: Communicator, timeout: float | timedelta | None) -> Iterator[None]:
    """Let waits of ``comm``, and of groups made in this block, have another limit."""
    before, limit_s = comm.timeout_s, seconds(timeout)
    comm.timeout_s = before if limit_s is None else limit_s
    try:
        yield
    finally:
        comm.timeout_s = before


def refuse(verb: str, **options: object) -> None:
    """Refuse options of PyTorch that have no meaning here."""
    for name, value in options.items():
        if value is not None:
            do = "leave it out: the launcher brings the ranks together, and MPI's options are MPI's"
            raise ValueError(explain(f"{verb}: {name}", got=repr(value), expected="nothing", do=do))


class _Default(type):
    """What makes WORLD a question that is asked anew each time."""

    @property
    def WORLD(cls) -> Communicator | None:  # noqa: N802 (PyTorch's name)
        """The default group; None if there is none."""
        return current()


class group(metaclass=_Default):  # noqa: N801 (PyTorch's name)
    """Holds ``WORLD``, the default group."""


class GroupMember(metaclass=_Default):
    """Holds ``WORLD``, the default group, and ``NON_GROUP_MEMBER``, which groups of other ranks are equal to."""

    NON_GROUP_MEMBER = NonMember()
