"""A folder of checkpoints: which steps are whole, and how one more gets in.

A step is written to ``step-00000100.tmp`` and renamed when all of it is on the disk. Where the step exists
already, the old one is first moved to ``step-00000100.old``, and counts until the new one has taken its
place.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcdist.checkpoint.manifest import Manifest
from hpcdist.errors import CheckpointError, explain

__all__ = ["committing", "find", "latest", "steps", "sync_folder"]

_LOG = logging.getLogger("hpcdist.checkpoint")
_NAME = re.compile(r"step-(\d{8,})(\.old)?")


def steps(folder: str | os.PathLike[str]) -> list[int]:
    """Return the steps of which ``folder`` holds a whole checkpoint, in ascending order."""
    return sorted(step for step in _candidates(Path(folder)) if _whole(Path(folder), step))


def latest(folder: str | os.PathLike[str]) -> int | None:
    """Return the newest step of which ``folder`` holds a whole checkpoint, or None.

    Whole means: a valid manifest, and its files in the sizes it records. What is not, is logged and passed
    over.
    """
    candidates = sorted(_candidates(Path(folder)), reverse=True)
    return next((step for step in candidates if _whole(Path(folder), step)), None)


def find(folder: Path, step: int) -> tuple[Path, Manifest]:
    """Return where the checkpoint of ``step`` is, and its manifest.

    Raises
    ------
    CheckpointError
        If there is none, or it is not whole.
    """
    final = _final(folder, step)
    replaced = _replaced(final)
    home = replaced if replaced.is_dir() and not final.is_dir() else final
    if not home.is_dir():
        raise CheckpointError(
            explain(
                f"no checkpoint of step {step} in {folder}",
                got=f"steps {', '.join(map(str, sorted(_candidates(folder))[-10:])) or '(none)'}",
                expected=final.name,
            )
        )
    manifest = Manifest.read(home)
    if manifest.step != step:
        raise CheckpointError(explain(f"checkpoint {home}", got=f"a manifest of step {manifest.step}", expected=step))
    return home, manifest


@contextmanager
def committing(folder: Path, step: int) -> Iterator[Path]:
    """Yield an empty folder that becomes the checkpoint of ``step`` if the block succeeds, and is removed if not.

    The block must have synced its files.
    """
    final = _final(folder, step)
    temporary, replaced = final.with_name(f"{final.name}.tmp"), _replaced(final)
    _make(folder)
    if replaced.is_dir() and not final.is_dir():
        replaced.rename(final)
    _remove(replaced)
    _remove(temporary)
    temporary.mkdir()
    try:
        yield temporary
        sync_folder(temporary)
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Write the entries of ``folder`` to the disk, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _final(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _replaced(final: Path) -> Path:
    return final.with_name(f"{final.name}.old")


def _candidates(folder: Path) -> set[int]:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return {int(match[1]) for match in map(_NAME.fullmatch, names) if match}


def _whole(folder: Path, step: int) -> bool:
    try:
        find(folder, step)
    except CheckpointError as error:
        _LOG.warning("passed over: %s", error)
        return False
    return True


def _make(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
