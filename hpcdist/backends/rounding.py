"""What decides the last bits of results on this machine, for the same program on the same numbers.

Measured: with another number of threads, or for another kind of core, a BLAS gives other bits in up to two thirds of a
product's elements; without subnormal numbers (any library built with ``-ffast-math`` may turn them off when it is
loaded) 14 % of a product's elements changed; compiled kernels and generic ones differ in exponentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

from hpcdist.backends import blas, cpu, flags
from hpcdist.errors import LaunchError, explain

__all__ = ["Settings", "check_same", "keeps_subnormals", "settings"]

Settings: TypeAlias = dict[str, int | str]


def settings() -> Settings:
    """Return all of it by name: small values, to be compared over ranks and with those of a checkpoint."""
    return {
        "threads": cpu.num_threads(),
        "blas_threads": blas.usual_threads(),
        "blas": str(blas.describe()["config"]),
        "cpu": cpu.get_cpu_capability(),
        "numpy": version("numpy"),
        "kernels": _kernels(),
        "subnormals": int(keeps_subnormals()),
    }


def keeps_subnormals() -> bool:
    """Say whether this thread's arithmetic has numbers below the smallest normal one, as it should."""
    import numpy as np

    return bool((np.full(64, 1e-40, np.float32) * np.float32(1) != 0).all())


def check_same(what: str, mine: Mapping[str, int | str], expected: Mapping[str, int | str]) -> None:
    """Refuse settings that would give other bits; ``what`` says whose they are compared with.

    Raises
    ------
    LaunchError
        Names the first one that differs.
    """
    for name, value in expected.items():
        if mine[name] != value:
            do = "run on one kind of machine with the same libraries and threads, or without reproducible"
            raise LaunchError(
                explain(f"reproducible: {name} is another one {what}", got=mine[name], expected=value, do=do)
            )


def _kernels() -> str:
    """Return which compiled kernels there are."""
    try:
        compiled = f"numba {version('numba')}"
    except PackageNotFoundError:
        compiled = "generic"
    off = flags.disabled_kernels()
    return f"{compiled} without {', '.join(off)}" if off else compiled
