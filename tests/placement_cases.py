"""Operations, and the placements of their inputs that the table of placements has."""

from collections import Counter
from itertools import combinations

import numpy as np
from unit.autograd.test_ops import CASES, groups, normal

from hpcdist.autograd import OPS
from hpcdist.dtensor import Invariant, Partial, Replicate, Shard

INV, R, P = Invariant(), Replicate(), Partial()


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


def drawn(case, axes, n):
    """Return ``n`` random placements of all inputs, a tuple an input with one an axis; always the same ones."""
    _, arrays, _ = NAMED[case]
    rng = np.random.default_rng(list(map(ord, case)))

    def one(array):
        kinds = [INV, INV, R, *map(Shard, range(array.ndim)), *[P] * (array.dtype.kind in "fc")]
        return tuple(kinds[rng.integers(len(kinds))] for _ in range(axes))

    return [tuple(map(one, arrays)) for _ in range(n)]


def short(placements):
    """Return "S0,I" for (Shard(0), Invariant())."""
    return ",".join(f"S{p.dim}" if isinstance(p, Shard) else type(p).__name__[0] for p in placements)
