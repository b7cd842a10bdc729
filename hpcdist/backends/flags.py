"""Switches: which compiled kernels may run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcdist import config

__all__ = ["disable_kernel", "disabled_kernels", "kernel_enabled", "kernels"]

_ALL = "*"
_off: set[str] = set(config.environment().kernels_off)


def kernel_enabled(name: str) -> bool:
    """Say whether the compiled form of kernel ``name`` may run."""
    return not _off or not (name in _off or _ALL in _off)


def disable_kernel(name: str) -> None:
    """Switch the compiled form of kernel ``name`` off for the rest of the process; ``"*"`` means all."""
    _off.add(name)


def disabled_kernels() -> tuple[str, ...]:
    """Return the names of kernels whose compiled form is switched off, sorted; ``"*"`` means all."""
    return tuple(sorted(_off))


@contextmanager
def kernels(*, off: tuple[str, ...] = (_ALL,)) -> Iterator[None]:
    """Run a block with the compiled forms of the kernels named in ``off`` (default: all) switched off."""
    before = set(_off)
    _off.update(off)
    try:
        yield
    finally:
        _off.clear()
        _off.update(before)
