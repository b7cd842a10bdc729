"""``hpcdist bench``: measure this installation."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

__all__ = ["main"]

SUBJECTS = {
    "step": "training steps of a GPT, to compare with other frameworks",
    "collectives": "latency and bandwidth of every verb, beside the same calls of mpi4py",
}


def main(arguments: Sequence[str]) -> int:
    """Run ``hpcdist bench ARGUMENTS``."""
    parser = argparse.ArgumentParser(
        prog="hpcdist bench",
        description="Measure this installation.",
        epilog="\n".join(["subjects:", *(f"  {name:<12} {says}" for name, says in SUBJECTS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=SUBJECTS, metavar="WHAT", help="hpcdist bench WHAT --help says more")
    what = parser.parse_args(arguments[:1]).what
    return int(importlib.import_module(f"hpcdist.cli.bench.{what}").main(arguments[1:]))
