"""``hpcdist doctor``: what this machine's MPI is, and where the ranks of a job stand or stood."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hpcdist.errors import LaunchError, explain

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Tell, and return 0; 1 if there is no MPI, or no record of a job."""
    parser = argparse.ArgumentParser(
        prog="hpcdist doctor",
        description="Say which MPI this Python starts ranks with; or with --flight, from the flight recorders of a job "
        "that hangs or has died: who waits where, for whom, and since when. Starts no MPI.",
    )
    parser.add_argument("--flight", type=Path, metavar="DIR", help="folder with the files rank-*.flight of a job")
    parser.add_argument("--last", type=int, default=10, metavar="N", help="calls of each rank to show; 10 if not given")
    parser.add_argument("--json", action="store_true", help="for machines: one object, with all calls of all ranks")
    options = parser.parse_args(arguments)
    if options.last < 0:
        parser.error(f"argument --last: {options.last} is not a number of calls")
    return _mpi(options.json) if options.flight is None else _flight(options.flight, options.last, options.json)


def _mpi(as_json: bool) -> int:
    from hpcdist.backends import mpi

    found: dict[str, Any] = {"mpi": None}
    try:
        launcher = mpi.find()
    except LaunchError as error:
        print(json.dumps(found) if as_json else error)
        return 1
    said = {"launcher": str(launcher.path), "family": launcher.family, "version": launcher.version}
    found["mpi"] = {**said, "lacks": launcher.lacks()}
    title = {"openmpi": "Open MPI", "mpich": "MPICH, or another one with hydra"}[launcher.family]
    lines = [f"MPI: {title} {launcher.version}, started by {launcher.path}", *launcher.lacks().values()]
    print(json.dumps(found) if as_json else "\n".join(lines))
    return 0


def _flight(folder: Path, num_calls: int, as_json: bool) -> int:
    from hpcdist.comm import flight, flight_report

    try:
        found = flight.load(folder)
    except OSError as error:
        raise LaunchError(
            explain(
                f"--flight {folder} cannot be read",
                got=error.strerror,
                expected="the folder flight in that of a run, or HPCDIST_FLIGHT_DIR of the job",
            )
        ) from error
    if as_json:
        print(json.dumps(flight_report.record(found)))
    else:
        print(flight_report.paragraph(found))
        if found.rings and num_calls:
            print(f"\n{flight_report.table(found, num_calls)}")
    return 0 if found.rings else 1
