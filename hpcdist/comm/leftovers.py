"""Memory that MPICH shares between ranks has a name in /dev/shm, which stays there if the job does not end well.

A rank that aborts the job removes the names it knows. Under ``hpcdist launch`` it also notes them in the launcher's
folder, so that they go however it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["note", "remove", "remove_noted"]

_NAME = "mpich_shm_"
_FOLDER = Path("/dev/shm")
_MAPS = Path("/proc/self/maps")


def remove() -> None:
    """Remove the names of what this process shares."""
    _remove(_names())


def note(folder: Path, rank: int) -> None:
    """Write down for the launcher what rank ``rank`` shares."""
    names = _names()
    if names:
        with suppress(OSError):
            (folder / f"rank-{rank}.shared").write_text("\n".join(names))


def remove_noted(folder: Path) -> None:
    """Remove what the ranks of a job have noted, when it is over."""
    for path in folder.glob("rank-*.shared"):
        with suppress(OSError):
            _remove(path.read_text().split())


def _names() -> list[str]:
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return []
    words = {line.split()[-1] for line in lines if f" {_FOLDER}/{_NAME}" in line}
    return sorted(Path(word).name for word in words if Path(word).name.startswith(_NAME))


def _remove(names: Iterable[str]) -> None:
    for name in names:
        if name.startswith(_NAME) and "/" not in name:
            with suppress(OSError):
                (_FOLDER / name).unlink()
