"""What operations do with distributed inputs, by placement: the whole answer at some collectives, or a refusal.

``python tests/placement_table.py --write`` measures anew and writes placement_table.txt, which the tests hold ranks to.
"""

import contextlib
import re
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from move_suite import pieces
from unit.autograd.test_ops import CASES, draw, groups, normal, run

from hpcdist.autograd import OPS, Tensor, apply, backward
from hpcdist.comm import init_device_mesh
from hpcdist.comm import local as threads
from hpcdist.dtensor import placements as words
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard, Share, dual
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import DistError

TABLE = Path(__file__).with_suffix(".txt")
SIZES = (1, 2, 3, 4)
TIMEOUT_S = 20.0
RAISES = "raises"
INV, R, P = Invariant(), Replicate(), Partial()


# ---------------------------------------------------------------- cases
def _named(cases):
    """Return the cases by name: "add.0" is the first one of add."""
    seen = Counter()
    named = {}
    for case in cases:
        named[f"{case[0]}.{seen[case[0]]}"] = case
        seen[case[0]] += 1
    return named


def _reshape(old, new):
    return "reshape", (normal(*old),), {"shape": new}


def _getitem(*index):
    return "getitem", (normal(4, 5, 3),), {"index": index}


MORE = [
    *[_reshape(*shapes) for shapes in (((4, 6), (24,)), ((24,), (4, 6)), ((4, 6), (3, 8)), ((3, 8), (3, -1, 2)))],
    *[_reshape(*shapes) for shapes in (((2, 1, 6), (2, 6)), ((5, 4), (5, 1, 4, 1)), ((6, 4, 2), (3, 2, 8)))],
    _getitem(2),
    _getitem(..., slice(1, None)),
    _getitem(None, slice(None), slice(None, None, -2)),
    _getitem(slice(None), np.array([[3, 0], [1, 1]])),
    _getitem(np.array([True, False, True, True])),
    ("cat", (normal(3, 4), normal(2, 4), normal(3, 4, seed=1)), {"dim": 0}),
    ("split", (normal(12, 2),), {"sizes": (8, 4), "dim": 0}),
    ("transpose", (normal(5, 4),), {"dims": (1, 0)}),
    ("softmax", (normal(6, 1),), {"dim": 0}),
    ("layer_norm", (normal(2, 12), normal(12), normal(12)), {"eps": 1e-5}),
    ("attention", (normal(2, 4, 36),), {"num_heads": 3, "causal": True}),
    ("swiglu", (normal(3, 16),), {}),
    ("exp", (normal(0, 3),), {}),
    ("sum", (normal(0, 3),), {"dim": 0, "keepdim": False}),
]
"""Beside the cases of autograd: more of what depends on extents."""

NAMED = _named([*CASES, *MORE])


def combos(case):
    """Return the placements to try, one an input: one input not Invariant; two or more cut alike, or sums."""
    name, arrays, attrs = NAMED[case]
    found = []
    for i, array in enumerate(arrays):
        sums = [P] if array.dtype.kind in "fc" else []
        found += [{i: p} for p in (R, *map(Shard, range(array.ndim)), *sums)]
    letters = groups(OPS[name].signature_for([a.shape for a in arrays], attrs).split("->")[0])
    letters = [[x.strip("[]") for x in g] for g in letters]
    together = [*combinations(range(len(arrays)), 2), tuple(range(len(arrays)))]
    for chosen in together if len(arrays) > 1 else []:
        for letter in dict.fromkeys(x for i in chosen for x in letters[i] if x.isalpha()):
            cut = {i: Shard(letters[i].index(letter)) for i in chosen if letter in letters[i]}
            found += [cut] if len(cut) > 1 else []
        sums = {i: P for i in chosen if arrays[i].dtype.kind in "fc"}
        found += [sums] if len(sums) > 1 else []
    return list(dict.fromkeys(tuple(some.get(i, INV) for i in range(len(arrays))) for some in found))


def sample(n):
    """Return ``n`` of all (case, placements), always the same ones."""
    everything = [(case, placements) for case in NAMED for placements in combos(case)]
    return [everything[i] for i in sorted(np.random.default_rng(0).permutation(len(everything))[:n])]


def short(placements):
    """Return "S0,I" for (Shard(0), Invariant())."""
    return ",".join(f"S{p.dim}" if isinstance(p, Shard) else type(p).__name__[0] for p in placements)


# ---------------------------------------------------------------- what ranks hold, and the whole
class Held(NamedTuple):
    """What one rank holds of an array, and where that lies; can be pickled."""

    data: np.ndarray
    placements: tuple[Placement, ...]
    coordinate: tuple[int, ...]
    boxes: list
    shape: tuple[int, ...]


def held(data, layout, placements=None):
    return Held(data, placements or layout.placements, layout.coordinate, layout.boxes, layout.shape)


def part(whole, layout, placements=None):
    """Return what this rank holds of an array, cut by hand, axis by axis."""
    for axis in layout.order:
        size, here = layout.mesh.shape[axis], layout.coordinate[axis]
        whole = pieces(whole, (placements or layout.placements)[axis], size)[here]
    return whole


def leaf(mesh, whole, placements, order=None):
    """Return a distributed leaf; floating ones collect gradients."""
    layout = Layout.of(mesh, placements, whole.shape, order)
    return DTensor(Tensor(part(whole, layout), requires_grad=whole.dtype.kind in "fc"), layout)


def joined(ranks):
    """Return the array that ranks hold; check that those which shall hold the same do."""
    placements = ranks[0].placements
    same = [axis for axis, p in enumerate(placements) if not isinstance(p, (Shard, Partial))]
    (pending,) = {p.op for p in placements if isinstance(p, Partial)} - {"avg"} or {"sum"}
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}[pending]
    whole = np.full(ranks[0].shape, Partial(pending).neutral(ranks[0].data.dtype))
    copies = {}
    for rank in ranks:
        kept = tuple(c for axis, c in enumerate(rank.coordinate) if axis not in same)
        if kept in copies:
            np.testing.assert_array_equal(rank.data, copies[kept], err_msg="copies that differ")
            continue
        copies[kept] = rank.data
        for there, here in rank.boxes:
            whole[there] = combine(whole[there], rank.data[here])
    return _scaled(whole, ranks)


def _scaled(whole, ranks):
    """Undo what averages and shares of them are scaled by: the number of ranks."""
    for axis, p in enumerate(ranks[0].placements):
        size = len({rank.coordinate[axis] for rank in ranks})
        whole = whole / size if p == Partial("avg") else whole * size if isinstance(p, Share) else whole
    return whole


# ---------------------------------------------------------------- measuring
class Measured(NamedTuple):
    """What happened on one rank."""

    refusal: str
    outputs: list[Held]
    grads: list[Held | None]
    collectives: tuple[Counter, Counter]


def measure(mesh, case, placements):
    """Run an operation forwards and backwards on this rank; if it is refused, as the refusal says. Collective."""
    name, arrays, attrs = NAMED[case]
    leaves = [leaf(mesh, a, [p]) for a, p in zip(arrays, placements, strict=True)]
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


def advised(name, inputs, refusal):
    """Return the inputs after the calls that a refusal names, which tells the operation and its layouts, too."""
    calls = re.findall(r"redistribute\((placements=.*?)\) of input (\d+)", refusal)
    shown = [f"input {i}: {x.layout}" in refusal for i, x in enumerate(inputs)]
    assert refusal.startswith(f"{name}: "), refusal
    assert all(shown), refusal
    assert calls, refusal
    # what a user would copy must be Python
    wanted = {int(i): eval(f"dict({text})", vars(words)) for text, i in calls}
    return [x.redistribute(**wanted[i]) if i in wanted else x for i, x in enumerate(inputs)]


def finished(y):
    """Return an output with a maximum over ranks finished: it has no dual."""
    pending = any(isinstance(p, Partial) and p.op not in ("sum", "avg") for p in y.placements)
    return y.redistribute(placements=[INV] * len(y.placements)) if pending else y


def seed(y):
    """Return this rank's part of a cotangent that is fixed for the whole, placed as the dual says."""
    whole = draw(np.broadcast_to(np.zeros((), y.dtype), y.shape), 9)
    return np.array(part(whole, y.layout, [dual(p) for p in y.placements]))


def gradient(x):
    """Return what this rank holds of the gradient of a leaf."""
    return None if x.grad is None else held(x.grad, x.layout, tuple(dual(p) for p in x.placements))


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


def compare(what, ranks, expected):
    """Check arrays that ranks hold, a list a rank, against whole ones."""
    assert {len(arrays) for arrays in ranks} == {len(expected)}, f"{what}s: wrong number"
    for slot, whole in enumerate(expected):
        parts = [arrays[slot] for arrays in ranks]
        assert (whole is None) == all(p is None for p in parts), f"{what} {slot}: none"
        if whole is None:
            continue
        assert {(p.shape, p.data.dtype) for p in parts} == {(whole.shape, whole.dtype)}, f"{what} {slot}"
        np.testing.assert_allclose(joined(parts), whole, rtol=1e-9, atol=1e-11, err_msg=f"{what} {slot}")


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
        for placements, measured in zip(tried, _on_ranks(size, case, tried), strict=True):
            found[short(placements)].append(_judged(case, size, measured))
    return {placements: _row(outcomes) for placements, outcomes in found.items()}


def _on_ranks(size, case, tried):
    """Return what happened on each rank, an entry a combination of placements; ranks out of step fail alone."""
    try:
        return list(zip(*threads.run(size, _all_of, case, tried, timeout_s=TIMEOUT_S), strict=True))
    except DistError as error:
        if len(tried) == 1:
            return [[error]]
        return [_on_ranks(size, case, [placements])[0] for placements in tried]


def _all_of(comm, case, tried):
    mesh = init_device_mesh((comm.size,), ("tp",), comm)
    return [_attempt(mesh, case, placements) for placements in tried]


def _attempt(mesh, case, placements):
    """Measure; an error that no rank should raise is a result, too, as long as all raise it."""
    try:
        return measure(mesh, case, placements)
    except DistError:
        raise
    except Exception as error:
        return error


def _judged(case, size, measured):
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
