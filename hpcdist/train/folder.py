"""The folder of a run: a new one, or one that holds a run to go on with."""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from hpcdist import checkpoint, config
from hpcdist.comm import Communicator, flight_folder
from hpcdist.comm.agreement import on_one_rank
from hpcdist.errors import explain
from hpcdist.train.metrics import Metrics

__all__ = ["open_folder"]

_LINGER_S = 5.0


def open_folder(
    out: str | os.PathLike[str] | None, comm: Communicator, *, name: str, resume: bool = False
) -> tuple[Path, int | None]:
    """Return the folder of a run, and the step of the checkpoint to go on from; None at the start.

    Collective over ``comm``; only rank 0 looks at the disk, and every rank moves its flight recorder there. A job that
    was started again (HPCDIST_RESTART_COUNT or SLURM_RESTART_COUNT above 0) goes on without ``resume``. Metrics of
    steps that will be repeated are dropped.

    Parameters
    ----------
    out : path, optional
        Made if missing. None: a new folder ``runs/NAME-DATE-TIME``.
    name : str
        Of the job.
    resume : bool
        Go on with the run in ``out``.

    Raises
    ------
    ValueError
        If ``out`` holds checkpoints and nobody asked to go on, or holds no run and somebody did, or another job writes
        there; on every rank.
    OSError
        If nothing can be written there; on every rank.
    """
    folder, step = on_one_rank(comm, lambda: _new(name, resume) if out is None else _given(Path(out), resume))
    flight_folder.enter(folder)
    return folder, step


def _new(name: str, resume: bool) -> tuple[Path, None]:
    if resume or _restarted():
        raise ValueError(
            explain(
                "which run to go on with" if resume else "a job that was started again goes on with its run; which",
                got="no --out",
                do="say --out DIR, with the folder of the run; a job that may be started again needs it from the start",
            )
        )
    base = Path(time.strftime(f"runs/{name}-%Y%m%d-%H%M%S"))
    for number in itertools.count(1):
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        with suppress(FileExistsError):  # of another job that began in the same second
            _prepare(folder, 0, new=True)
            break
    return folder, None


def _given(folder: Path, resume: bool) -> tuple[Path, int | None]:
    step = checkpoint.latest(folder)
    if step is not None and not (resume or _restarted()):
        raise ValueError(
            explain(
                f"output folder {folder} holds the checkpoints of a run",
                got=f"step {step}, and no --resume",
                do="say --resume to go on with it, or choose another --out",
            )
        )
    if resume and step is None and not Metrics(folder).path.exists():
        raise ValueError(
            explain(
                f"--resume: there is no run to go on with in {folder}",
                expected="a folder with checkpoints (step-00000100)",
                do="give the --out of the run, or leave --resume out to start one",
            )
        )
    _prepare(folder, step or 0)
    return folder, step


def _restarted() -> bool:
    return config.environment().restart_count > 0


def _prepare(folder: Path, step: int, *, new: bool = False) -> None:
    """Make the folder, see that it can be written to, and keep the metrics up to ``step``."""
    try:
        folder.mkdir(parents=True, exist_ok=not new)
        _hold(folder)
        metrics = Metrics(folder)
        metrics.path.touch()
        metrics.drop_after(step)
    except OSError as error:
        reason = f"{folder}: {error.strerror}"
        raise type(error)(
            explain("output folder cannot be written to", got=reason, do="choose another --out")
        ) from error


_held: dict[Path, TextIO] = {}


def _hold(folder: Path) -> None:
    """Keep other jobs out of the folder for as long as this process lives; one that was killed may linger a moment."""
    where = folder.resolve()
    if where in _held:
        return
    file = (where / ".lock").open("a")
    limit = time.monotonic() + _LINGER_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < limit:
                time.sleep(0.05)
                continue
            file.close()
            raise ValueError(
                explain(f"another job is writing to {folder}", do="choose another --out, or let that one end")
            ) from None
        except OSError:
            pass  # a file system without locks
        _held[where] = file
        return
