"""What is found once a mesh, and kept with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from hpcdist.comm.mesh import DeviceMesh

__all__ = ["LIMIT", "kept"]

T = TypeVar("T")
Keys = TypeVarTuple("Keys")

LIMIT = 4096
"""What is kept of one kind a mesh; programs whose shapes never repeat would fill the memory."""


def kept(mesh: DeviceMesh, key: tuple[*Keys], find: Callable[[*Keys], T]) -> T:
    """Return ``find(*key)``, which is called once for each key and mesh unless too many others came between."""
    table: dict[Any, T] = mesh.memo.get(find) or mesh.memo.setdefault(find, {})
    try:
        return table[key]
    except KeyError:
        pass
    found = find(*key)
    if len(table) >= LIMIT:
        table.clear()
    table[key] = found
    return found
