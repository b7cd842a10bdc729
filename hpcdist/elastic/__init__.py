"""Starting jobs, and keeping them going (torch.distributed.elastic). Model-free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdist.elastic.job import Job
    from hpcdist.elastic.launcher import launch
    from hpcdist.elastic.rank import run_job

__all__ = ["Job", "launch", "run_job"]

_HOMES = {"Job": "job", "launch": "launcher", "run_job": "rank"}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'hpcdist.elastic' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hpcdist.elastic.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
