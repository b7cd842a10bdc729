"""Environment variables: one closed list, read once."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from hpcdist.errors import explain

__all__ = ["Environment", "environment", "read"]

Setting = Literal["auto", "on", "off"]

MAX_COUNT = 2**31 - 1
"""Largest count that an MPI-3 call can express."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The variables hpcdist reads.

    Attributes
    ----------
    max_count : int
        HPCDIST_MAX_COUNT: elements in one MPI message; larger ones are cut.
    kernels_off : tuple of str
        HPCDIST_KERNELS_OFF: names of compiled kernels not to use, separated by commas; ``*`` for all.
    restart_count : int
        HPCDIST_RESTART_COUNT or SLURM_RESTART_COUNT: how often this job has been started again.
    allow_singletons : bool
        HPCDIST_ALLOW_SINGLETONS=1: do not object when each rank finds itself alone.
    check : bool
        HPCDIST_CHECK=1: ranks compare their calls before they communicate.
    cuda_aware : str
        HPCDIST_CUDA_AWARE: whether MPI is given pointers into a GPU's memory: ``"auto"`` (if it says that it takes
        them), ``"on"`` or ``"off"``.
    cuda_nonblocking_reductions : bool
        HPCDIST_CUDA_NONBLOCKING_REDUCTIONS=1: such pointers are given to non-blocking reductions too.
    flight_dir : str or None
        HPCDIST_FLIGHT_DIR: folder of the flight recorder's files.
    late_s : float
        HPCDIST_LATE_S: how long a rank waits for others before it says so.
    error_dir : str or None
        HPCDIST_ERROR_DIR: where a failing rank leaves its report for the launcher (set by the launcher).
    """

    max_count: int = MAX_COUNT
    kernels_off: tuple[str, ...] = ()
    restart_count: int = 0
    allow_singletons: bool = False
    check: bool = False
    cuda_aware: Setting = "auto"
    cuda_nonblocking_reductions: bool = False
    flight_dir: str | None = None
    late_s: float = 10.0
    error_dir: str | None = None


def read(variables: Mapping[str, str]) -> Environment:
    """Parse ``variables``.

    Raises
    ------
    ValueError
        If one has a value that makes no sense.
    """

    def number(name: str, default: int, least: int) -> int:
        text = variables.get(name, str(default))
        if not text.isdecimal() or int(text) < least:
            raise ValueError(explain(f"environment variable {name}", got=repr(text), expected=f"an integer >= {least}"))
        return int(text)

    def seconds(name: str, default: float) -> float:
        text = variables.get(name, str(default))
        if not re.fullmatch(r"\d*\.?\d+", text) or float(text) == 0:
            raise ValueError(explain(f"environment variable {name}", got=repr(text), expected="seconds, above 0"))
        return float(text)

    def setting(name: str) -> Setting:
        text = variables.get(name) or "auto"
        for known in get_args(Setting):
            if text == known:
                return known
        raise ValueError(explain(f"environment variable {name}", got=repr(text), expected="auto, on or off"))

    def switch(name: str) -> bool:
        return variables.get(name, "") not in ("", "0")

    names = variables.get("HPCDIST_KERNELS_OFF", "")
    return Environment(
        max_count=number("HPCDIST_MAX_COUNT", MAX_COUNT, 1),
        kernels_off=tuple(name for name in names.split(",") if name),
        restart_count=max(number("HPCDIST_RESTART_COUNT", 0, 0), number("SLURM_RESTART_COUNT", 0, 0)),
        allow_singletons=switch("HPCDIST_ALLOW_SINGLETONS"),
        check=switch("HPCDIST_CHECK"),
        cuda_aware=setting("HPCDIST_CUDA_AWARE"),
        cuda_nonblocking_reductions=switch("HPCDIST_CUDA_NONBLOCKING_REDUCTIONS"),
        flight_dir=variables.get("HPCDIST_FLIGHT_DIR") or None,
        late_s=seconds("HPCDIST_LATE_S", 10.0),
        error_dir=variables.get("HPCDIST_ERROR_DIR") or None,
    )


@functools.cache
def environment() -> Environment:
    """Return what the process environment says, read once."""
    return read(os.environ)
