"""``hpcdist launch``: start a job on several ranks."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcdist.cli.job import add_job, job_of

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Start the ranks, wait for them, and return the exit code of the first that failed."""
    parser = argparse.ArgumentParser(
        prog="hpcdist launch",
        usage="hpcdist launch [-h] -n N [--hostfile FILE] [--no-python] JOB ... | -m MODULE ...",
        description="Start a job on N ranks with the MPI that belongs to this Python. "
        "If one fails, all end; the first failure is shown last, and its exit code is returned: "
        "128 + n for signal n.",
    )
    parser.add_argument("-n", type=_positive, required=True, metavar="N", help="number of ranks")
    parser.add_argument("--hostfile", type=Path, metavar="FILE", help="hosts to run on, as this MPI's mpirun reads it")
    parser.add_argument("--no-python", action="store_true", help="JOB is any program, not a Python file")
    add_job(parser)
    options = parser.parse_args(arguments)
    job = job_of(parser, options, python=not options.no_python)

    from hpcdist.elastic.launcher import launch

    return launch(job, options.n, hostfile=options.hostfile)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks: an integer >= 1 is expected")
    return int(text)
