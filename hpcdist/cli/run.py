"""``hpcdist run``: be one rank of a job."""

from __future__ import annotations

import argparse

from hpcdist.cli.job import add_job, job_of

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run a job in this process and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="hpcdist run",
        usage="hpcdist run [-h] JOB ... | -m MODULE ...",
        description="Run a job in this process, as one rank of whatever started it: mpirun, srun, or nothing "
        "(one rank). Starts no processes. If the job fails on this rank, the whole job ends.",
    )
    add_job(parser)
    job = job_of(parser, parser.parse_args(arguments))

    from hpcdist.elastic.rank import run_job

    return run_job(job)
