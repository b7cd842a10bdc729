"""The command line: one file a verb, imported when it is chosen."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from hpcdist.errors import LaunchError

__all__ = ["main"]

VERBS = {
    "run": "run a job in this process, as one rank of whatever started it",
    "launch": "start a job on several ranks of this machine, or of the hosts in a file",
    "doctor": "say which MPI is here, or where the ranks of a job stand",
    "bench": "measure training steps, and collectives beside mpi4py",
    "warmup": "compile the kernels for this kind of CPU, so that no job has to",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hpcdist ARGV`` and return its exit code: 2 for a command that makes no sense.

    Parameters
    ----------
    argv : sequence of str, optional
        Default: the command line of this process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in VERBS:
        _parser().parse_args(arguments)
    verb, *rest = arguments
    try:
        return int(importlib.import_module(f"hpcdist.cli.{verb}").main(rest))
    except LaunchError as error:
        print(f"hpcdist {verb}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, VERBS))
    parser = argparse.ArgumentParser(
        prog="hpcdist",
        description="Train models on MPI machines with NumPy and CuPy arrays.",
        epilog="\n".join(["verbs:", *(f"  {verb:<{width}}  {says}" for verb, says in VERBS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hpcdist {_version()}")
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="hpcdist VERB --help says more")
    return parser


def _version() -> str:
    from importlib.metadata import version

    return version("hpcdist")
