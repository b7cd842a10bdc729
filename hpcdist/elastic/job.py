"""A job: what every rank runs."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcdist.errors import LaunchError, explain

__all__ = ["Job", "Kind"]

Kind = Literal["script", "module", "program"]


@dataclass(frozen=True)
class Job:
    """A Python file, a Python module, or any program, and its arguments."""

    kind: Kind
    target: str
    arguments: tuple[str, ...] = ()

    def check(self) -> None:
        """Make sure that the job exists.

        Raises
        ------
        LaunchError
            If there is no such file, module or program.
        """
        if not _EXISTS[self.kind](self.target):
            raise LaunchError(explain(f"there is no such {self.kind}", got=self.target, expected=_EXPECTED[self.kind]))

    def command(self) -> list[str]:
        """Return what the launcher starts on every rank: Python jobs go through ``hpcdist run``."""
        if self.kind == "program":
            return [self.target, *self.arguments]
        flag = ["-m"] if self.kind == "module" else []
        # -P: a file of the working folder must not stand in for a module of the standard library
        return [sys.executable, "-P", "-m", "hpcdist", "run", *flag, self.target, *self.arguments]


def _is_script(target: str) -> bool:
    path = Path(target)
    return path.is_file() or (path / "__main__.py").is_file()


def _is_module(target: str) -> bool:
    """Say whether the package that holds the module can be found; nothing of it is imported."""
    top = target.split(".")[0]
    found = (Path(f"{top}.py").is_file(), Path(top).is_dir())
    return any(found) or (top.isidentifier() and importlib.util.find_spec(top) is not None)


def _is_program(target: str) -> bool:
    return shutil.which(target) is not None


_EXISTS = {"script": _is_script, "module": _is_module, "program": _is_program}
_EXPECTED = {
    "script": "a Python file; for modules there is -m, for other programs hpcdist launch --no-python",
    "module": "a module that this Python can import",
    "program": "an executable file, or a program in PATH",
}
