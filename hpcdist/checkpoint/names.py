"""Which names a checkpoint can hold: those that HDF5 keeps as they are."""

from __future__ import annotations

from collections.abc import Collection

from hpcdist.errors import explain

__all__ = ["check_names"]


def check_names(names: Collection[str]) -> None:
    """Object to names that HDF5 would cut, merge or refuse; ``/`` makes groups, dots and unicode are fine.

    Raises
    ------
    TypeError
        If a name is not a string.
    ValueError
        If a name has a NUL, or a part that is empty, ``.`` or ``..``; or if one names a group of another.
    """
    for name in names:
        if not isinstance(name, str):
            raise TypeError(explain("checkpoint: name of an entry", got=repr(name), expected="a string"))
        _check_parts(name)
    for name in names:
        for group in _groups(name):
            if group in names:
                raise ValueError(
                    explain(
                        "checkpoint: one entry lies inside another",
                        got=f"{name!r} and {group!r}",
                        expected="no entry named like a group of another",
                        do=f"rename {group!r}",
                    )
                )


def _check_parts(name: str) -> None:
    bad = "\0" in name or any(part in ("", ".", "..") for part in name.split("/"))
    if bad or not name.isprintable():
        raise ValueError(
            explain(
                "checkpoint: name of an entry",
                got=repr(name),
                expected="printable text; between the slashes neither nothing nor '.' nor '..'",
            )
        )


def _groups(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]
