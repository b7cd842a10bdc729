"""Whether the MPI takes pointers into a GPU's memory: asked, never tried, for the wrong answer ends the process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from hpcdist.config import Setting
from hpcdist.errors import LaunchError, explain

__all__ = ["cuda_aware", "offers_cuda"]

_MAPS = Path("/proc/self/maps")
_QUESTION = "MPIX_Query_cuda_support"
_BY_VARIABLE = {
    "CRAY MPICH": ("MPICH_GPU_SUPPORT_ENABLED",),
    "Intel(R) MPI": ("I_MPI_OFFLOAD",),
    "MVAPICH": ("MVP_USE_CUDA", "MV2_USE_CUDA"),
}
"""Libraries, by a part of their title, that take device pointers exactly if one of these variables says so."""
_BY_QUESTION = {"Open MPI": "OMPI_MCA_opal_cuda_support", "MPICH": "MPIR_CVAR_ENABLE_GPU"}
"""Libraries that answer, and the variable that can forbid it."""


def cuda_aware(setting: Setting, library: str, variables: Mapping[str, str]) -> bool:
    """Say whether MPI is to be given device pointers. MPI must have been started.

    Parameters
    ----------
    setting : str
        ``"auto"``: if the MPI says that it takes them; ``"on"``: also if it cannot say; ``"off"``: never.
    library : str
        What MPI_Get_library_version returns.
    variables : mapping
        The environment.

    Raises
    ------
    LaunchError
        For ``"on"``, if the MPI says that it does not take them: it would read the pointer and end the process.
    """
    if setting == "off":
        return False
    offered = offers_cuda(library, variables)
    if setting == "on" and offered is False:
        got = f"{_title(library)}, which says that it is not"
        do = "load an MPI built with CUDA, set what switches its support on, or HPCDIST_CUDA_AWARE=auto (or off)"
        expected = "an MPI that takes device pointers"
        raise LaunchError(explain("HPCDIST_CUDA_AWARE=on: MPI is not CUDA-aware", got=got, expected=expected, do=do))
    return setting == "on" or offered is True


def offers_cuda(
    library: str, variables: Mapping[str, str], ask: Callable[[], bool | None] | None = None
) -> bool | None:
    """Return what the MPI says about device pointers; None if it cannot say.

    Parameters
    ----------
    library, variables
        As for :func:`cuda_aware`.
    ask : callable, optional
        Asks the library that is loaded.
    """
    for title, names in _BY_VARIABLE.items():
        if title in library:
            return any(_switch(variables, name) for name in names)
    for title, name in _BY_QUESTION.items():
        if title in library:
            told = _switch(variables, name)
            answer = (ask or _ask)()
            return False if told is False else told if answer is None else answer
    return None


def _switch(variables: Mapping[str, str], name: str) -> bool | None:
    """Return whether a variable switches something on, or off; None if it is not set."""
    text = variables.get(name, "").strip().lower()
    return text not in ("0", "false", "no", "off", "disabled") if text else None


def _ask() -> bool | None:
    """Call the extension by which Open MPI and MPICH tell; None if no loaded library has it."""
    for path in _loaded():
        try:
            question = getattr(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY), _QUESTION)
        except (OSError, AttributeError):
            continue
        return bool(question())
    return None


def _loaded() -> list[str]:
    """Return the files of MPI libraries in this process."""
    paths = {line.split(maxsplit=5)[-1] for line in _MAPS.read_text().splitlines() if "/libmpi" in line}
    return sorted(paths)


def _title(library: str) -> str:
    return " ".join(library.strip().splitlines()[0].split(",")[0].split())
