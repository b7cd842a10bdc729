"""The manifest of a checkpoint: what it holds, how large its files are, who wrote it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hpcdist.checkpoint.entry import Entry
from hpcdist.errors import CheckpointError, explain

__all__ = ["Manifest"]

FILE_NAME = "manifest.json"
SCHEMA = 1
_WRITERS = ("hpcdist", "h5py", "numpy")


@dataclass(frozen=True)
class Manifest:
    """What belongs to a checkpoint.

    Attributes
    ----------
    step : int
    files : mapping of str to int
        Data files beside the manifest, and their sizes in bytes.
    entries : mapping of str to Entry
    versions : mapping of str to str
        Of the libraries that wrote it.
    """

    step: int
    files: Mapping[str, int]
    entries: Mapping[str, Entry]
    versions: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path, step: int, entries: Mapping[str, Entry]) -> Manifest:
        """Describe the files that lie in ``folder`` now."""
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        return cls(step, files, entries, {name: version(name) for name in _WRITERS})

    def write(self, folder: Path) -> None:
        """Write ``folder/manifest.json`` and sync it."""
        with (folder / FILE_NAME).open("x", encoding="utf-8") as file:
            file.write(self.dumps())
            file.flush()
            os.fsync(file.fileno())

    def dumps(self) -> str:
        """Return the manifest as JSON, one line an entry."""
        head = {
            "format": "hpcdist checkpoint",
            "schema": SCHEMA,
            "step": self.step,
            "files": {name: {"size": size} for name, size in self.files.items()},
            "versions": dict(self.versions),
            "entries": {},
        }
        lines = [f"  {_json(name)}: {_json(entry.to_json())}" for name, entry in self.entries.items()]
        return json.dumps(head, indent=1).removesuffix("{}\n}") + "{\n" + ",\n".join(lines) + "\n }\n}\n"

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest in ``folder`` and see that the files it names are there, in their sizes.

        Raises
        ------
        CheckpointError
            If ``folder`` holds no whole checkpoint.
        """
        path = folder / FILE_NAME
        try:
            manifest = cls._loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise CheckpointError(explain("checkpoint without a valid manifest", got=f"{path}: {reason}")) from error
        for name, size in manifest.files.items():
            _check_size(folder / name, size)
        return manifest

    @classmethod
    def _loads(cls, text: str) -> Manifest:
        fields = json.loads(text)
        if fields["format"] != "hpcdist checkpoint" or fields["schema"] != SCHEMA:
            raise ValueError(
                f"format {fields['format']!r}, schema {fields['schema']!r}; this hpcdist reads schema {SCHEMA}"
            )
        return cls(
            int(fields["step"]),
            {_plain(name): int(file["size"]) for name, file in fields["files"].items()},
            {name: Entry.from_json(entry) for name, entry in fields["entries"].items()},
            dict(fields["versions"]),
        )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(name: Any) -> str:
    if Path(name).name != name:
        raise ValueError(f"file {name!r} lies outside the checkpoint")
    return str(name)


def _check_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise CheckpointError(explain("checkpoint without its file", got=f"{path}: {error.strerror}")) from error
    if found != size:
        raise CheckpointError(explain("checkpoint file of another size", got=f"{path}: {found} bytes", expected=size))
