"""Where what rests on a rank is: where the module is, or in the memory of the host."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CPUOffloadPolicy", "OffloadPolicy"]


@dataclass(frozen=True)
class OffloadPolicy:
    """Parameters, gradients and optimizer state stay where the module is."""


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """What a GPU computes with is copied there, and rests on the host: shards, their gradients, optimizer state.

    Where the module is on the host already it makes no difference.

    Attributes
    ----------
    pin_memory : bool
        Accepted: copies to a GPU go through page-locked memory that transfers share, whatever it says.
    """

    pin_memory: bool = True
