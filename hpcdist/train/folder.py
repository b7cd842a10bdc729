"""The folder of a run: a new one, or one that holds a run to go on with."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from pathlib import Path

from hpcdist import checkpoint, config
from hpcdist.comm import Communicator
from hpcdist.errors import explain
from hpcdist.train.metrics import Metrics

__all__ = ["open_folder"]


def open_folder(
    out: str | os.PathLike[str] | None, comm: Communicator, *, name: str, resume: bool = False
) -> tuple[Path, int | None]:
    """Return the folder of a run, and the step of the checkpoint to go on from; None at the start.

    Collective over ``comm``; only rank 0 looks at the disk. A job that was started again (HPCDIST_RESTART_COUNT or
    SLURM_RESTART_COUNT above 0) goes on without ``resume``. Metrics of steps that will be repeated are dropped.

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
        If ``out`` holds checkpoints and nobody asked to go on, or holds no run and somebody did; on every rank.
    OSError
        If nothing can be written there; on every rank.
    """
    found: tuple[Path, int | None] | None = None
    with comm.agreed():
        if comm.rank == 0:
            found = _new(name, resume) if out is None else _given(Path(out), resume)
    folder, step = comm.broadcast_object(found)
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
        metrics = Metrics(folder)
        metrics.path.touch()
        metrics.drop_after(step)
    except OSError as error:
        reason = f"{folder}: {error.strerror}"
        raise type(error)(
            explain("output folder cannot be written to", got=reason, do="choose another --out")
        ) from error
