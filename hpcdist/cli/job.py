"""The part of a command line that names a job: ``JOB args`` or ``-m module args``."""

from __future__ import annotations

import argparse

from hpcdist.elastic.job import Job, Kind

__all__ = ["add_job", "job_of"]


def add_job(parser: argparse.ArgumentParser) -> None:
    """Let ``parser`` take a job; it must be the last thing added."""
    rest = argparse.REMAINDER
    parser.add_argument("-m", dest="module", nargs=rest, metavar="MODULE", help="run a module, as python -m does")
    parser.add_argument("job", nargs=rest, metavar="JOB", help="a Python file, and arguments for it")


def job_of(parser: argparse.ArgumentParser, options: argparse.Namespace, *, python: bool = True) -> Job:
    """Return the job that ``options`` name, or end with a usage message.

    Raises
    ------
    LaunchError
        If there is no such file, module or program.
    """
    words = options.module or options.job
    if words[:1] == ["--"]:  # ends the options, as for other programs; argparse leaves it here
        words = words[1:]
    if not words:
        parser.error("a job is missing: JOB, or -m MODULE")
    kind: Kind = "module" if options.module else "script" if python else "program"
    job = Job(kind, words[0], tuple(words[1:]))
    job.check()
    return job
