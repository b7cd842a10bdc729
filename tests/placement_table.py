"""What operations do with distributed inputs, by placement: the whole answer at some collectives, or a refusal.

``python tests/placement_table.py --write`` measures anew and writes placement_table.txt, which the tests hold ranks to.
"""

import contextlib
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from held_parts import Held, advised, compare, finished, gradient, held, leaf, seed
from placement_cases import NAMED, combos, short
from unit.autograd.test_ops import run

from hpcdist.autograd import OPS, apply, backward
from hpcdist.comm import init_device_mesh
from hpcdist.comm import local as threads
from hpcdist.errors import DistError

TABLE = Path(__file__).with_suffix(".txt")
SIZES = (1, 2, 3, 4)
TIMEOUT_S = 20.0
RAISES = "raises"


class Measured(NamedTuple):
    """What happened on one rank."""

    refusal: str
    outputs: list[Held]
    grads: list[Held | None]
    collectives: tuple[Counter, Counter]


def measure(mesh, case, placements):
    """Run an operation forwards and backwards on this rank; if it is refused, as the refusal says. Collective.

    ``placements`` has one an input, or a tuple of them on a mesh of more axes.
    """
    name, arrays, attrs = NAMED[case]
    leaves = [leaf(mesh, a, p if isinstance(p, tuple) else [p]) for a, p in zip(arrays, placements, strict=True)]
    refusal, inputs = "", leaves
    with counted(mesh) as forward:
        try:
            results = apply(OPS[name], *leaves, **attrs)
        except ValueError as error:
            refusal = str(error)
            inputs = advised(name, leaves, refusal)
            results = apply(OPS[name], *inputs, **attrs)
    results = results if isinstance(results, tuple) else (results,)
    starts = [finished(y) for y in results if y.requires_grad]
    with counted(mesh) as back:
        backward([y.local for y in starts], [seed(y) for y in starts])
    grads = [gradient(x) for x in leaves if x.requires_grad and starts]
    return Measured(refusal, [held(y.local.data, y.layout) for y in results], grads, (forward, back))


@contextlib.contextmanager
def counted(mesh):
    """Yield a counter that gets the collectives this rank posts in the block, if its communicator counts them."""
    found, before = Counter(), _posted(mesh)
    try:
        yield found
    finally:
        found.update(_posted(mesh) - before)


def _posted(mesh):
    return sum((Counter(getattr(comm, "counts", {})) for comm in mesh.get_all_groups()), Counter())


# ---------------------------------------------------------------- judging
def judge(case, ranks):
    """Return "raises", or the collectives forwards and backwards; fail unless the answer is that of one process."""
    refusals = {r.refusal for r in ranks}
    assert len(refusals) == 1, f"ranks are told different things: {refusals}"
    name, arrays, attrs = NAMED[case]
    outputs, grads = run(name, arrays, attrs)
    compare("output", [r.outputs for r in ranks], outputs)
    compare("gradient", [r.grads for r in ranks], grads)
    return RAISES if refusals != {""} else " / ".join(verbs([r.collectives[way] for r in ranks]) for way in (0, 1))


def verbs(counts):
    """Return "2 all_reduce", or "-"; of all ranks the most."""
    most = Counter()
    for one in counts:
        most |= one
    return ", ".join(f"{n} {verb}" for verb, n in sorted(most.items())) or "-"


# ---------------------------------------------------------------- the table
class Row(NamedTuple):
    """What a combination of placements comes to."""

    outcome: str
    problem: str = ""


def rows(case):
    """Return what each combination of placements comes to, on 1 to 4 ranks: {placements: Row}."""
    tried = combos(case)
    found = {short(placements): [] for placements in tried}
    for size in SIZES:
        for placements, measured in zip(tried, on_ranks((size,), case, tried), strict=True):
            found[short(placements)].append(judged(case, size, measured))
    return {placements: _row(outcomes) for placements, outcomes in found.items()}


def on_ranks(shape, case, tried):
    """Return what happened on each rank, an entry a combination of placements; ranks out of step fail alone."""
    try:
        ranks = threads.run(math.prod(shape), _all_of, shape, case, tried, timeout_s=TIMEOUT_S)
        return list(zip(*ranks, strict=True))
    except DistError as error:
        if len(tried) == 1:
            return [[error]]
        return [on_ranks(shape, case, [placements])[0] for placements in tried]


def _all_of(comm, shape, case, tried):
    mesh = init_device_mesh(shape, ("dp", "tp")[-len(shape) :], comm)
    return [_attempt(mesh, case, placements) for placements in tried]


def _attempt(mesh, case, placements):
    """Measure; an error that no rank should raise is a result, too, as long as all raise it."""
    try:
        return measure(mesh, case, placements)
    except DistError:
        raise
    except Exception as error:
        return error


def judged(case, size, measured):
    """Return the outcome of a combination of placements, or what is wrong with it."""
    for one in measured:
        if isinstance(one, Exception):
            return f"! {size} ranks: {type(one).__name__}: {one}"
    try:
        return judge(case, measured)
    except AssertionError as error:
        return f"! {size} ranks: {error}"


def _row(outcomes):
    """Return one row for all numbers of ranks; collectives are counted where there are others."""
    problems = [text for text in outcomes if text.startswith("!")]
    if problems:
        return Row("fails", problems[0])
    refused = [size for size, text in zip(SIZES, outcomes, strict=True) if text == RAISES]
    if refused:
        where = "" if len(refused) == len(SIZES) else f" on {', '.join(map(str, refused))} ranks"
        return Row(RAISES + where)
    ways = zip(*(text.split(" / ") for text in outcomes[1:]), strict=True)
    return Row(" / ".join(verbs(map(_counter, way)) for way in ways))


def _counter(text):
    """Read "2 all_reduce, 1 all_gather"."""
    return Counter({verb: int(n) for n, verb in re.findall(r"(\d+) (\w+)", text)})


def total(outcome):
    """Return how many collectives an outcome names."""
    return sum(map(int, re.findall(r"(\d+) [a-z]", outcome)))


def refused(outcome, size):
    """Say whether an outcome is a refusal on this number of ranks."""
    return outcome == RAISES or (outcome.startswith(RAISES) and str(size) in re.findall(r"\d", outcome))


def heading(case):
    """Return "linear.0 (2, 3, 4), (5, 4)": a case, and the shapes of its inputs."""
    return f"{case} {', '.join(str(a.shape) for a in NAMED[case][1])}"


def written(case, outcomes):
    """Return the lines of a case: one an outcome, with the placements that come to it."""
    by_outcome = {}
    for placements, outcome in outcomes.items():
        by_outcome.setdefault(outcome, []).append(placements)
    return [heading(case), *(f"    {outcome}: {' '.join(by_outcome[outcome])}" for outcome in sorted(by_outcome))]


def golden():
    """Return what the table says: {case: {placements: outcome}}."""
    table = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line:
            continue
        if not line.startswith(" "):
            now = table.setdefault(line.split()[0], {})
            continue
        outcome, placements = line.strip().split(": ")
        now.update(dict.fromkeys(placements.split(), outcome))
    return table


HEADER = """\
# What operations do whose inputs are placed on one mesh axis: I Invariant, R Replicate, P Partial, S0 Shard(0), ...
# An outcome is a refusal, or the collectives that a rank posts on 2 to 4 ranks: forwards / backwards.
# Written by: python tests/placement_table.py --write
"""


def main():
    lines, problems = [], []
    for case in NAMED:
        found = rows(case)
        problems += [f"{case} {placements}: {row.problem}" for placements, row in found.items() if row.problem]
        lines += written(case, {placements: row.outcome for placements, row in found.items()})
    if "--write" in sys.argv and not problems:
        TABLE.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(problems or lines) + "\n")
    return len(problems) > 0


if __name__ == "__main__":
    sys.exit(main())
