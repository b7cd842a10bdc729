"""Where the file of the flight recorder lies.

In ``HPCDIST_FLIGHT_DIR``, if that is set, and there it stays. Otherwise in memory; but where hpcdist owns the world,
under ``hpcdist launch`` in the launcher's own folder, and as soon as the job has a folder, in ``flight`` there. A job
that ends well leaves no file behind in these two.
"""

from __future__ import annotations

import atexit
import logging
from contextlib import suppress
from pathlib import Path

from hpcdist import config
from hpcdist.comm import leftovers, stacks
from hpcdist.comm.recorder import process_recorder

__all__ = ["FOLDER", "close", "enter", "enter_launcher", "open_given"]

FOLDER = "flight"
"""Name of the folder inside that of a job, or of the launcher."""

_log = logging.getLogger("hpcdist.comm")


class _Place:
    """Of this process in the world, once that is known, and whether hpcdist owns the world."""

    rank = 0
    size = 1
    is_owned = False


def open_given(rank: int, size: int) -> None:
    """Move to HPCDIST_FLIGHT_DIR, if that is set, as rank ``rank`` of ``size``."""
    _Place.rank, _Place.size = rank, size
    atexit.register(process_recorder().close)
    folder = config.environment().flight_dir
    if folder is not None:
        _move_to(Path(folder))


def enter_launcher() -> None:
    """Note that hpcdist owns the world; move to the launcher's folder, where that is on this machine."""
    _Place.is_owned = True
    given, reports = config.environment().flight_dir, config.environment().error_dir
    if reports is not None and Path(reports).is_dir():
        leftovers.note(Path(reports), _Place.rank)
        if given is None:
            _move_to(Path(reports) / FOLDER)


def enter(folder: Path) -> None:
    """Move to ``flight`` in the folder of the job, and leave word in the launcher's where that is."""
    before = process_recorder().path
    if not _Place.is_owned or config.environment().flight_dir is not None:
        return
    _move_to(folder / FOLDER)
    now = process_recorder().path
    if before is not None and now is not None and before != now:
        with suppress(OSError):
            before.symlink_to(now)


def close() -> None:
    """Tidy up after a job that has ended well."""
    recorder = process_recorder()
    stacks.close()
    path = recorder.path
    if path is None or config.environment().flight_dir is not None:
        return
    recorder.discard()
    _remove_if_empty(path.parent)


def _move_to(folder: Path) -> None:
    try:
        stacks.move_beside(process_recorder().move_to(folder, _Place.rank, _Place.size))
    except OSError as error:
        _remove_if_empty(folder)
        level = logging.WARNING if _Place.rank == 0 else logging.INFO  # it is most likely the same for all
        _log.log(level, "the flight recorder cannot write to %s, and stays where it was: %s", folder, error)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # other ranks have files there
        folder.rmdir()
