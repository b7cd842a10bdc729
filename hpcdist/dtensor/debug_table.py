"""What was communicated, as rows of a table: one a verb, a module, a call site or a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.errors import explain

if TYPE_CHECKING:
    from hpcdist.dtensor.debug import CommRecord

__all__ = ["check_level", "rows", "text"]

_KEYS = (
    ("verb",),
    ("module", "phase", "verb"),
    ("module", "phase", "verb", "group", "size", "site"),
    ("module", "phase", "verb", "group", "size", "shape", "dtype", "site"),
)
"""What rows are told apart by at each level; at the last one every call has a row of its own."""
_RIGHT = ("size", "count", "bytes", "ms")


def check_level(level: int) -> None:
    """Refuse a noise level that is none."""
    if level not in range(len(_KEYS)):
        raise ValueError(explain("noise_level", got=level, expected=f"0 to {len(_KEYS) - 1}"))


def rows(records: Sequence[CommRecord], level: int) -> list[dict[str, Any]]:
    """Return a row for each kind of call, in the order in which they first came.

    Each has the keys of its level, and "count", "bytes" and "ms"; what is still under way has taken no time.
    """
    check_level(level)
    found: dict[Any, dict[str, Any]] = {}
    for place, record in enumerate(records):
        head = {name: getattr(record, name) for name in _KEYS[level]}
        key = place if level == len(_KEYS) - 1 else tuple(head.values())
        row = found.setdefault(key, {**head, "count": 0, "bytes": 0, "ms": 0.0})
        row["count"] += 1
        row["bytes"] += record.payload_bytes
        row["ms"] += 1e3 * (record.seconds or 0.0)
    return list(found.values())


def text(table: Sequence[dict[str, Any]], title: str) -> str:
    """Return rows as text under a title, in columns."""
    if not table:
        return title
    names = list(table[0])
    lines = [names, *([_shown(name, row[name]) for name in names] for row in table)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join([title, *(_line(names, widths, cells) for cells in lines)])


def _line(names: Sequence[str], widths: Sequence[int], cells: Sequence[str]) -> str:
    aligned = (
        cell.rjust(width) if name in _RIGHT else cell.ljust(width)
        for name, width, cell in zip(names, widths, cells, strict=True)
    )
    return "  ".join(aligned).rstrip()


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "module":
        return value or "(root)"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
