"""``hpcdist bench collectives``: every verb from 8 bytes up, beside the same calls of mpi4py in the same run."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcdist.errors import explain

if TYPE_CHECKING:
    from hpcdist.comm.mpi.communicator import MpiCommunicator
    from hpcdist.comm.mpi.raw import Pair

__all__ = ["main"]

_SIZES = [8 << 3 * power for power in range(9)] + [256 << 20]
_SAMPLE_S, _SAMPLES = 2e-3, 9
_MOST_CALLS = 200


class Row(NamedTuple):
    """One verb at one size: medians over samples of the slowest rank's time for one call.

    Attributes
    ----------
    ours_us, raw_us : float
        Microseconds a call.
    """

    verb: str
    num_bytes: int
    ours_us: float
    raw_us: float


def main(arguments: Sequence[str]) -> int:
    """Run ``hpcdist bench collectives ARGUMENTS``. Collective over the world."""
    options = _parse(arguments)
    comm = _world()
    rows = []
    for num_bytes in options.sizes:
        rows += _measure(comm, num_bytes, options.verbs)
        if comm.rank == 0:
            print("\n".join(_lines(rows, num_bytes)), flush=True)
    if comm.rank == 0 and options.json:
        line = {"label": options.label, "ranks": comm.size, "rows": [row._asdict() for row in rows]}
        with options.json.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hpcdist bench collectives",
        description="Time every verb and the same call of mpi4py, in turn: hpcdist launch -n 2 -m hpcdist bench ...",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES, help="bytes; default 8 to 256 MiB")
    parser.add_argument("--verbs", nargs="*", default=[], help="only these")
    parser.add_argument("--json", type=Path, help="append the result to this file, as one line")
    parser.add_argument("--label", default="", help="its name there")
    return parser.parse_args(arguments)


def _world() -> MpiCommunicator:
    import hpcdist as hd

    comm = hd.init()
    if comm.size == 1:
        do = "hpcdist launch -n 2 -m hpcdist bench collectives"
        raise SystemExit(explain("bench collectives: ranks", got=1, expected="2 or more", do=do))
    from hpcdist.comm.mpi.communicator import MpiCommunicator

    assert isinstance(comm, MpiCommunicator)
    return comm


def _measure(comm: MpiCommunicator, num_bytes: int, verbs: Sequence[str]) -> list[Row]:
    """Time the verbs at one size. Collective over ``comm``."""
    from hpcdist.comm.mpi.raw import pairs

    chosen = {verb: pair for verb, pair in pairs(comm, num_bytes).items() if not verbs or verb in verbs}
    return [Row(verb, num_bytes, *_compare(comm, pair)) for verb, pair in chosen.items()]


def _compare(comm: MpiCommunicator, pair: Pair) -> tuple[float, float]:
    """Return microseconds a call of both, which take turns. Collective over ``comm``."""
    first_s = max(_sample(comm, call, 1) for call in pair)
    first_s = max(_sample(comm, call, 1) for call in pair) if first_s < 1 else first_s  # the very first is slow
    calls = min(max(int(_SAMPLE_S / first_s), 1), _MOST_CALLS)
    samples = [[_sample(comm, call, calls) for call in pair] for _ in range(_SAMPLES)]
    ours, raw = (statistics.median(column) * 1e6 for column in zip(*samples, strict=True))
    return ours, raw


def _sample(comm: MpiCommunicator, call: Callable[[], object], calls: int) -> float:
    """Return seconds a call on the slowest rank. Collective over ``comm``."""
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return max(comm.all_gather_object((time.perf_counter() - start) / calls))


def _lines(rows: Sequence[Row], num_bytes: int) -> list[str]:
    """Return the table's lines for one size, below its head."""
    lines = [f"{_text(num_bytes):>8}  {'ours us':>10} {'mpi4py us':>10} {'ratio':>6} {'over us':>9} {'GB/s':>7}"]
    for row in rows:
        if row.num_bytes == num_bytes:
            rate = row.num_bytes / row.ours_us / 1e3
            over = row.ours_us - row.raw_us
            lines.append(
                f"  {row.verb:<14}{row.ours_us:>10.1f} {row.raw_us:>10.1f} {row.ours_us / row.raw_us:>6.2f} "
                f"{over:>9.1f} {rate:>7.2f}"
            )
    return lines


def _text(num_bytes: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            return f"{num_bytes // size} {unit}"
    return f"{num_bytes} B"
