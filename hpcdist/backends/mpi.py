"""Which MPI belongs to this Python, found without starting it: mpi4py is looked at, never imported."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcdist.errors import LaunchError, explain

__all__ = ["Family", "Launcher", "find"]

Family = Literal["openmpi", "mpich"]

_NAMES = ("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.hydra")
_ABI: dict[str, Family] = {".so.40": "openmpi", ".so.12": "mpich"}
"""How the name of a library ends: the number of its binary interface."""
_TITLES: dict[Family, str] = {"openmpi": "Open MPI", "mpich": "MPICH"}
_LACKS: tuple[tuple[Family, tuple[str, ...], str, str], ...] = (
    ("openmpi", ("3.", "4."), "whole lines", "lines that ranks print at the same time may be mixed"),
    ("mpich", ("",), "shared cores", "with more ranks than cores a blocking call of MPI's may take milliseconds"),
)
"""What a family cannot do, in versions that begin so: name and reason."""
_QUESTION_S = 20
_INSTALL = (
    'pip install "hpcdist[mpi]", or load the site\'s MPI so that its mpirun is in PATH; '
    "under Slurm also: srun hpcdist run JOB"
)


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The program that starts ranks.

    Attributes
    ----------
    path : Path
        Of ``mpirun`` or ``mpiexec``.
    family : str
        ``"openmpi"``, or ``"mpich"`` for all with the hydra process manager (MPICH, Intel MPI, MVAPICH).
    version : str
        As the program says.
    """

    path: Path
    family: Family
    version: str

    def lacks(self) -> dict[str, str]:
        """Return what this MPI cannot do that others can, each with a reason: short names and sentences."""
        return {
            name: reason
            for family, versions, name, reason in _LACKS
            if family == self.family and self.version.startswith(versions)
        }


def find() -> Launcher:
    """Return the launcher of the library that MPI4PY_LIBMPI names.

    Without that variable: the one beside this Python, else that of mpi4py's library, else the one in PATH.

    Raises
    ------
    LaunchError
        If there is none that answers ``--version`` as Open MPI or as hydra, or none of the chosen library's family.
    """
    refused, families = [], _chosen_families()
    for path in _programs():
        answer = _ask(path)
        launcher = identify(path, answer)
        if launcher is not None and launcher.family in families:
            return launcher
        refused.append(f"{path} (--version says {answer.strip()[:60]!r})")
    wanted = " or ".join(_TITLES[family] for family in families)
    raise LaunchError(
        explain(
            "no MPI was found",
            got="; ".join(refused) or "no mpirun or mpiexec",
            expected=f"{wanted} in {Path(sys.executable).parent}, with mpi4py's library, or in PATH",
            do=_INSTALL,
        )
    )


def identify(path: Path, answer: str) -> Launcher | None:
    """Tell what the program at ``path`` is from its ``answer`` to ``--version``; None if unknown."""
    open_mpi = re.search(r"\(Open MPI\)\s+(\S+)", answer)
    if open_mpi:
        return Launcher(path=path, family="openmpi", version=open_mpi[1])
    if re.search(r"HYDRA|Intel\(R\) MPI", answer):
        version = re.search(r"Version:?\s+(\S+)", answer)
        return Launcher(path=path, family="mpich", version=version[1] if version else "unknown")
    return None


def _programs() -> Iterator[Path]:
    seen = set()
    for folder in _folders():
        for name in _NAMES:
            path = folder / name
            if path not in seen and os.access(path, os.X_OK) and path.is_file():
                seen.add(path)
                yield path


def _folders() -> Iterator[Path]:
    yield from _beside(_chosen_libraries())
    yield Path(sys.executable).parent
    yield from _beside(_linked_libraries())
    yield from (Path(entry) for entry in os.get_exec_path())


def _beside(libraries: list[Path]) -> Iterator[Path]:
    for library in libraries:  # Open MPI refuses to start from /bin, which often is another name of /usr/bin
        yield from ((parent / "bin").resolve() for parent in library.parents[1:])


def _chosen_libraries() -> list[Path]:
    """Return the files that mpi4py's portable wheel is told to look at, first to last."""
    return [Path(entry) for entry in os.environ.get("MPI4PY_LIBMPI", "").split(os.pathsep) if entry]


def _chosen_families() -> list[Family]:
    """Return the families that fit the chosen library: another one's launcher would start ranks that are alone."""
    told = [family for library in _chosen_libraries() for end, family in _ABI.items() if library.name.endswith(end)]
    return told[:1] or list(_TITLES)


def _linked_libraries() -> list[Path]:
    """Return the MPI libraries that mpi4py's extension modules load; a portable wheel names none."""
    spec = importlib.util.find_spec("mpi4py")
    folders = spec.submodule_search_locations if spec else None
    modules = [str(path) for folder in folders or () for path in sorted(Path(folder).glob("MPI*.so"))]
    if not modules:
        return []
    return [Path(found) for found in re.findall(r"libmpi\S*\.so\S* => (/\S+)", _output(["ldd", *modules]))]


def _ask(path: Path) -> str:
    return _output([str(path), "--version"])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_QUESTION_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout + done.stderr
