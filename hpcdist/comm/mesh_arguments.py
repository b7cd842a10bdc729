"""Arguments of a mesh: PyTorch's words for them, the default communicator, and that all ranks give the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.comm.communicator import Communicator
from hpcdist.comm.grid import Names
from hpcdist.errors import explain

__all__ = ["arrangement", "check_groups", "check_same", "communicator"]

DEVICES = ("cpu", "cuda")


def communicator(comm: object) -> Communicator:
    """Return ``comm``, or the default communicator for None; TypeError if it is something else."""
    if comm is None:
        from hpcdist.comm.init import get_default

        return get_default()
    if not isinstance(comm, Communicator):
        do = "call it on ranks of the communicator only"
        raise TypeError(explain("DeviceMesh: comm", got=repr(comm), expected="a communicator", do=do))
    return comm


def arrangement(
    name: str, first: Any, names: Any, torch_first: Any, torch_names: Names, device: str | None
) -> tuple[Any, Names]:
    """Return the ranks or the shape, and the names, in whichever of PyTorch's and our words they are given.

    A leading device is dropped, as one that is given by name: an array knows where it is.

    Raises
    ------
    ValueError
        For another device.
    TypeError
        If there are no ranks (no shape), or there are twice.
    """
    if isinstance(first, str):
        first, names, device = names, None, first
    if device not in (None, *DEVICES):
        do = "leave it out: an array knows where it is"
        raise ValueError(explain("DeviceMesh: device", got=repr(device), expected=" or ".join(DEVICES), do=do))
    if (first is None) is (torch_first is None):
        raise TypeError(explain(name, got=(first, torch_first), expected="given once"))
    return torch_first if first is None else first, names if torch_names is None else torch_names


def check_groups(name: str, groups: Sequence[object]) -> None:
    """Refuse what are no groups that this rank is in, or none at all; TypeError then."""
    if not groups or not all(isinstance(group, Communicator) for group in groups):
        expected = "a communicator, or one an axis"
        raise TypeError(explain(f"{name}: groups", got=list(groups), expected=expected))


def check_same(comm: Communicator, *arguments: Any) -> None:
    """Raise on every rank if ranks passed different arguments. Collective over ``comm``."""
    everyone = comm.all_gather_object(arguments)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            got = f"rank 0: {everyone[0]}, rank {rank}: {theirs}"
            raise ValueError(explain("DeviceMesh: arguments", got=got, expected="the same on every rank"))
