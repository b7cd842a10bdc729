"""Random programs of collectives, messages and groups, the same on all ranks, with what each rank has to get (NumPy).

All ranks go through the calls of a program in one order, each through those of its groups, so a program always ends.
"""

import dataclasses
from typing import Any, NamedTuple

import comm_suite
import ml_dtypes
import numpy as np

from hpcdist.comm import ReduceOp

DTYPES = ["?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "g", "c8", "c16", ml_dtypes.bfloat16, ">f4"]
VERBS = {  # and how often each is drawn
    "all_reduce": 4,
    "reduce": 2,
    "broadcast": 3,
    "all_gather": 3,
    "reduce_scatter": 3,
    "all_to_all": 2,
    "gather": 2,
    "scatter": 2,
    "barrier": 1,
}
OTHERS = ("pair", "ring", "fan_in", "object", "group")
MOST_FROM_ANYONE = 5
"""Elements of a message from any rank, which may not be cut."""


class Share(NamedTuple):
    """What one rank does in a collective, and what it has to get."""

    verb: str
    args: tuple
    options: dict
    expected: Any

    def start(self, comm, blocking):
        """Return the result, or a work."""
        return getattr(comm, self.verb if blocking else f"i{self.verb}")(*self.args, **self.options)


@dataclasses.dataclass
class Call:
    """A call that all ``members`` of a group make; ``shares`` are of a collective, else ``details`` say more."""

    kind: str
    group: int
    members: list
    blocking: bool = True
    shares: list = dataclasses.field(default_factory=list)
    details: dict = dataclasses.field(default_factory=dict)

    @property
    def is_collective(self):
        """Whether nobody comes through it alone."""
        return bool(self.shares or made_by(self))

    def changed(self, **changes):
        return dataclasses.replace(self, **changes)

    def __str__(self):
        return f"{self.kind} on {self.members} {'' if self.blocking else 'posted '}{self.details or self.shares}"


class Draw:
    """Draws what a collective of ``size`` ranks is called with; ``forced`` fixes some of it."""

    def __init__(self, seed, size, **forced):
        self._rng, self.size, self._forced = np.random.default_rng(seed), size, forced

    def choose(self, name, options):
        chosen = options[self._rng.integers(len(options))]
        return self._forced.get(name, chosen)

    def chance(self, probability):
        return self._rng.random() < probability

    # ---- single arguments
    def dtype(self):
        return np.dtype(self.choose("dtype", DTYPES))

    def shape(self, least_ndim=0):
        long = self.choose("long", [()] * 9 + [(3000,)])
        extents = [(), (4,), (1,), (0,), (2, 3), (3, 0), (0, 3), (5, 2), (2, 3, 2), (2, 1, 4)]
        shape = long or self.choose("shape", [e for e in extents if len(e) >= least_ndim])
        return shape + self._forced.get("more", ())

    def op(self, dtype):
        kind = "f" if dtype == ml_dtypes.bfloat16 else dtype.kind
        ops = [ReduceOp.SUM, ReduceOp.PRODUCT]
        ops += [ReduceOp.MIN, ReduceOp.MAX] * (kind != "c")
        ops += [ReduceOp.AVG] if kind in "fc" else comm_suite.BITWISE
        return self.choose("op", ops)

    def root(self):
        return self.choose("root", range(self.size))

    def array(self, shape, dtype):
        """Return small integers, whose sums and products are exact, in a random layout."""
        values = self._rng.integers(0, 4, shape).astype(dtype)
        names = [n for n in comm_suite.LAYOUTS if values.ndim and (values.size or n != "read-only")]
        return comm_suite.LAYOUTS[self.choose("layout", names)](values) if names else values

    def arrays(self, shape, dtype):
        return [self.array(shape, dtype) for _ in range(self.size)]

    def out(self, shape, dtype):
        """Return something to receive in."""
        return layout(np.full(shape, 9).astype(dtype), self.choose("out", ["C", "Fortran", "strided"]))

    def sizes(self):
        return [int(n) for n in self._rng.integers(0, 4, self.size)]

    # ---- collectives: the shares of all ranks
    def all_reduce(self):
        dtype = self.dtype()
        op, arrays = self.op(dtype), self.arrays(self.shape(), dtype)
        total = combined(arrays, op)
        return [Share("all_reduce", (x, op), self._into(x, total, itself=True), total) for x in arrays]

    def reduce(self):
        dtype = self.dtype()
        op, arrays, root = self.op(dtype), self.arrays(self.shape(), dtype), self.root()
        total = combined(arrays, op)
        return [
            Share("reduce", (x, root, op), self._into(x, total), total if rank == root else None)
            for rank, x in enumerate(arrays)
        ]

    def broadcast(self):
        arrays, root = self.arrays(self.shape(), self.dtype()), self.root()
        value = arrays[root].copy()
        return [Share("broadcast", (x, root), self._into(x, value, itself=True), value) for x in arrays]

    def all_gather(self):
        shape, dtype = self.shape(least_ndim=1), self.dtype()
        dim = self.choose("dim", range(-len(shape), len(shape)))
        sizes = self.sizes() if self.chance(0.6) else None
        extents = sizes or [shape[dim]] * self.size
        arrays = [self.array(with_extent(shape, dim, n), dtype) for n in extents]
        whole = np.concatenate(arrays, axis=dim)
        return [Share("all_gather", (x, dim), {"sizes": sizes, **self._into(x, whole)}, whole) for x in arrays]

    def reduce_scatter(self):
        shape, dtype = self.shape(least_ndim=1), self.dtype()
        op, dim = self.op(dtype), self.choose("dim", range(-len(shape), len(shape)))
        sizes = self.sizes() if self.chance(0.6) else None
        extents = sizes or [shape[dim]] * self.size
        arrays = self.arrays(with_extent(shape, dim, sum(extents)), dtype)
        slices = np.split(combined(arrays, op), np.cumsum(extents)[:-1], axis=dim)
        return [
            Share("reduce_scatter", (x, dim, op), {"sizes": sizes, **self._into(x, mine)}, mine)
            for x, mine in zip(arrays, slices, strict=True)
        ]

    def all_to_all(self):
        dtype = self.dtype()
        parts = [[self.array(self.shape(), dtype) for _ in range(self.size)] for _ in range(self.size)]
        shares = []
        for rank in range(self.size):
            mine = [row[rank] for row in parts]
            outs = [self.out(x.shape, dtype) for x in mine] if self.chance(0.4) else None
            shares.append(Share("all_to_all", (parts[rank], [x.shape for x in mine]), {"out": outs}, mine))
        return shares

    def gather(self):
        dtype, root, even = self.dtype(), self.root(), self.chance(0.4)
        shape = self.shape()
        arrays = [self.array(shape if even else self.shape(), dtype) for _ in range(self.size)]
        outs = None if even else [self.out(x.shape, dtype) for x in arrays]
        return [
            Share("gather", (x, root), {"out": outs if rank == root else None}, arrays if rank == root else None)
            for rank, x in enumerate(arrays)
        ]

    def scatter(self):
        dtype, root = self.dtype(), self.root()
        parts = [self.array(self.shape(), dtype) for _ in range(self.size)]
        return [
            Share("scatter", (parts if rank == root else None, self.out(part.shape, dtype), root), {}, part)
            for rank, part in enumerate(parts)
        ]

    def barrier(self):
        return [Share("barrier", (), {}, None)] * self.size

    def _into(self, x, result, itself=False):
        """Return where the result goes: new memory, given memory, or ``x`` itself where that is allowed."""
        way = self.choose("way", ["new", "new", "given", "itself"])
        if way == "itself" and itself and x.flags.writeable:
            return {"out": x}
        return {} if way == "new" else {"out": self.out(result.shape, x.dtype)}


class Program:
    """The calls of a program of ``size`` ranks, drawn from a seed; ``groups`` are lists of ranks, the world first."""

    def __init__(self, seed, size, num_calls=14):
        self.seed, self.size = seed, size
        self._rng = np.random.default_rng([seed, size])
        self.groups = [list(range(size))]
        self.calls = [self.draw(index) for index in range(num_calls)]

    def __str__(self):
        return "\n".join(f"{index}: {call}" for index, call in enumerate(self.calls))

    def chance(self, probability):
        return self._rng.random() < probability

    def pick(self, options):
        return options[self._rng.integers(len(options))]

    def draw(self, index):
        group = int(self.pick(range(len(self.groups))))
        members = self.groups[group]
        if self.chance(0.3):
            return getattr(self, f"_{self.pick(OTHERS)}")(index, group, members)
        verb = self.pick([verb for verb, often in VERBS.items() for _ in range(often)])
        shares = getattr(Draw([self.seed, index], len(members)), verb)()
        return Call(verb, group, members, self.chance(0.5), shares)

    # ---- what is no collective
    def _message(self, index, count=None):
        draw = Draw([self.seed, index], self.size)
        dtype = draw.dtype()
        return [draw.array(draw.shape() if count is None else (count,), dtype) for _ in range(self.size)]

    def _pair(self, index, group, members):
        pair = self._rng.permutation(len(members))[:2]
        source, dest = int(pair[0]), int(pair[-1])
        if source == dest:
            return self._ring(index, group, members)
        return Call(
            "pair", group, members, self.chance(0.5), details={"x": self._message(index)[0], "pair": (source, dest)}
        )

    def _ring(self, index, group, members):
        step = int(self._rng.integers(len(members)))
        return Call("ring", group, members, details={"arrays": self._message(index), "step": step})

    def _fan_in(self, index, group, members):
        arrays = self._message(index, int(self._rng.integers(MOST_FROM_ANYONE + 1)))
        return Call("fan_in", group, members, details={"arrays": arrays, "root": int(self.pick(range(len(members))))})

    def _object(self, index, group, members):
        del index
        values = [{"rank": rank, "x": np.arange(self.pick([0, 3, 2000])), "y": "a" * 3 * rank} for rank in members]
        verb = self.pick(["all_gather", "broadcast", "gather", "scatter", "send"])
        root = int(self.pick(range(len(members))))
        return Call("object", group, members, details={"verb": verb, "values": values, "root": root})

    def _group(self, index, group, members):
        del index, members
        return self.draw_group(group)

    def draw_group(self, group):
        """Return a call on ``group`` that forms another one, or several."""
        members = self.groups[group]
        way = self.pick(["split", "create_group", "dup", "new_group", "split_node"])
        size = len(members)
        if way == "split":
            colors = [None if self.chance(0.15) else int(self._rng.integers(2)) for _ in members]
            keys = [int(self._rng.integers(3)) for _ in members]
            made = {}
            for color in sorted({color for color in colors if color is not None}):
                order = sorted((keys[r], r) for r in range(size) if colors[r] == color)
                made[color] = self._add([members[r] for _, r in order])
            return Call("split", group, members, details={"colors": colors, "keys": keys, "made": made})
        if way in ("dup", "split_node"):
            return Call(way, group, members, details={"made": self._add(members)})
        base = members if way == "create_group" else self.groups[0]
        places = [int(p) for p in self._rng.permutation(len(base))[: self._rng.integers(1, len(base) + 1)]]
        places = sorted(places) if way == "new_group" else places
        made = self._add([base[place] for place in places])
        parent = group if way == "create_group" else 0
        return Call(way, parent, self.groups[made], details={"places": places, "made": made})

    def _add(self, members):
        self.groups.append(members)
        return len(self.groups) - 1


def made_by(call):
    """Return the groups that a call forms."""
    made = call.details.get("made", [])
    return list(made.values()) if isinstance(made, dict) else [made] if isinstance(made, int) else []


def layout(x, name):
    return comm_suite.LAYOUTS[name](x) if x.ndim else x


def with_extent(shape, dim, extent):
    shape = list(shape)
    shape[dim] = extent
    return tuple(shape)


def combined(arrays, op):
    """Return what the reduction of ``arrays`` is."""
    if arrays[0].dtype.kind == "b":
        every = (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND)
        combine = np.logical_and if op in every else np.logical_xor if op is ReduceOp.BXOR else np.logical_or
        return combine.reduce(arrays)
    return comm_suite.reduced(arrays, op)


def same(got, expected):
    """Say whether a result is what it has to be, in values, shape and dtype; lists element by element."""
    if isinstance(expected, list):
        return isinstance(got, list) and len(got) == len(expected) and all(map(same, got, expected))
    if not isinstance(expected, np.ndarray | np.generic):
        return got is None and expected is None
    native = got.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    return native and got.shape == expected.shape and bool((got == expected).all())
