"""How much ranks watch each other: PyTorch's debug level, which is check mode here."""

from __future__ import annotations

from enum import Enum

from hpcdist import config
from hpcdist.errors import explain

__all__ = ["DebugLevel", "compares", "get_debug_level", "set_debug_level", "set_debug_level_from_env"]


class DebugLevel(Enum):
    """How much is compared: with ``DETAIL`` ranks of groups that are made from now on compare their calls.

    ``INFO`` is as ``OFF``: what PyTorch logs then, the flight recorder always keeps.
    """

    OFF = "OFF"
    INFO = "INFO"
    DETAIL = "DETAIL"


_level: DebugLevel | None = None


def get_debug_level() -> DebugLevel:
    """Return what was set, else DETAIL if HPCDIST_CHECK says so, else OFF."""
    if _level is not None:
        return _level
    return DebugLevel.DETAIL if config.environment().check else DebugLevel.OFF


def compares() -> bool:
    """Say whether ranks of a group that is made now compare their calls."""
    return get_debug_level() is DebugLevel.DETAIL


def set_debug_level(level: DebugLevel | str) -> None:
    """Let groups that are made from now on compare their calls, or not."""
    global _level
    names = [known.value for known in DebugLevel]
    if not isinstance(level, DebugLevel) and level not in names:
        raise ValueError(explain("set_debug_level: level", got=repr(level), expected=", ".join(names)))
    _level = DebugLevel(level)


def set_debug_level_from_env() -> None:
    """Forget what was set: HPCDIST_CHECK decides."""
    global _level
    _level = None
