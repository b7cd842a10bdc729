"""A name that the caller gives to what is called for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["label", "record_comm"]

_name: ContextVar[str] = ContextVar("label", default="")


@contextmanager
def record_comm(name: str) -> Iterator[None]:
    """Let ``name`` stand behind the call site of all that is called in this block, in messages and records."""
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


def label() -> str:
    """Return what :func:`record_comm` says, as it stands behind a call site."""
    name = _name.get()
    return name and f" ({name})"
