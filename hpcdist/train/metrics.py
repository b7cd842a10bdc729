"""The numbers of a run: one JSON object a line, appended as the run goes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

from hpcdist.errors import explain

__all__ = ["Metrics", "Record"]

Record: TypeAlias = Mapping[str, Any]

FILE_NAME = "metrics.jsonl"
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Metrics:
    """Append records to ``folder/metrics.jsonl``, and read them back. A context manager; one process writes.

    Every line is valid JSON with floats in full precision: ``float`` of the text gives the same bits back. JSON has no
    NaN and no infinity; they are the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which :meth:`read` turns
    back into floats. Each line is handed to the operating system at once, so that a killed run loses none; a line that
    was cut off by a full disk or a lost machine is ignored, and removed by the next :meth:`append`.

    Parameters
    ----------
    folder : path
        Made if missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder, FILE_NAME)
        self._file: FileIO | None = None

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def append(self, record: Record) -> None:
        """Write one line; NumPy scalars become numbers.

        Raises
        ------
        OSError
            If it cannot be written.
        TypeError
            If a value has no form in JSON.
        """
        line = json.dumps({name: _plain(value) for name, value in record.items()}, allow_nan=False)
        try:
            if self._file is None:
                self._file = self._opened()
            text = line.encode() + b"\n"
            while text:
                text = text[self._file.write(text) :]
        except OSError as error:
            raise type(error)(
                explain(
                    "metrics cannot be written",
                    got=f"{self.path}: {error.strerror}",
                    do="free some space, or choose another folder",
                )
            ) from error

    def read(self) -> list[dict[str, Any]]:
        """Return all records, in the order written; none if there is no file."""
        return [
            {name: _NOT_FINITE.get(value, value) if isinstance(value, str) else value for name, value in record.items()}
            for record in self._parsed(self._lines())
        ]

    def drop_after(self, step: int) -> None:
        """Remove the records of later steps than ``step``, for a run that goes on from there.

        The file is replaced in one go: whatever ends this leaves the old lines or the new ones.
        """
        self.close()
        lines = self._lines()
        kept = [line for line, record in zip(lines, self._parsed(lines), strict=True) if record.get("step", 0) <= step]
        if len(kept) == len(lines):
            return
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)

    def close(self) -> None:
        """Close the file; the next :meth:`append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _parsed(self, lines: list[str]) -> list[dict[str, Any]]:
        """Return the records of lines; a line that is none, as a lost machine may leave it, is named."""
        records = []
        for number, line in enumerate(lines, 1):
            try:
                records.append(dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                got = f"{line[:60]!r} in line {number} of {self.path}"
                do = "remove that line: the records of the other steps stay"
                raise ValueError(explain("metrics: no record", got=got, expected="a JSON object", do=do)) from error
        return records

    def _lines(self) -> list[str]:
        """Return the whole lines of the file: those that end."""
        if not self.path.exists():
            return []
        text = self.path.read_bytes()
        return text[: text.rfind(b"\n") + 1].decode().splitlines(keepends=True)

    def _opened(self) -> FileIO:
        """Open the file for appending, without the half line that may be at its end."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            text = self.path.read_bytes()
            if not text.endswith(b"\n"):
                os.truncate(self.path, text.rfind(b"\n") + 1)
        return self.path.open("ab", buffering=0)


def _plain(value: Any) -> Any:
    """Return a value for JSON."""
    if hasattr(value, "dtype"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
