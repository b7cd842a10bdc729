"""Random programs in which one rank does something else once, and what all ranks have to notice."""

import time

import numpy as np
from random_programs import VERBS, Call, Draw, Program, made_by
from random_runs import Run

from hpcdist.comm import CollectiveMismatchError, ReduceOp
from hpcdist.errors import DistError

KINDS = ("skip", "late", "raise", "order", "group", "form")
SEEN_BY_ALL = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
"""Shapes of these are known to all ranks, those of others only in check mode."""
CHANGES = {
    "dtype": ("dtype", np.dtype("f4"), VERBS),
    "op": ("op", ReduceOp.MAX, ("all_reduce", "reduce", "reduce_scatter")),
    "root": ("root", -1, ("reduce", "broadcast", "gather", "scatter")),
    "shape": ("more", (2,), VERBS),
}
NUM_EARLY = 6
"""So many random calls of a group are surely among the first, which are always compared."""


class LeftError(Exception):
    """A rank leaves its program."""


# ---- calls of which one does not fit
class Mismatched(Program):
    """A program with one call more, at ``index``, in which one rank of its group calls something else."""

    def __init__(self, seed, size, checked):
        super().__init__(seed, size)
        self.index = int(self._rng.integers(len(self.calls) if checked else NUM_EARLY))
        known = [0, *(group for call in self.calls[: self.index] for group in made_by(call))]
        group = self.pick([group for group in known if len(self.groups[group]) > 1])
        members = self.groups[group]
        shares, others = self._two(len(members), checked)
        odd = int(self.pick(range(len(members))))
        shares[odd] = others[odd]
        blocking = not checked or self.chance(0.5)
        self.calls.insert(self.index, Call(shares[0].verb, group, members, blocking, shares))

    def _two(self, size, checked):
        """Return the shares of two calls that do not fit together."""
        verb, seed, way = self.pick(list(VERBS)), [self.seed, 99], self.pick(["verb", *CHANGES])
        if way == "verb" or verb == "barrier":
            other = self.pick([v for v in VERBS if v != verb])
            return list(getattr(Draw(seed, size), verb)()), getattr(Draw(seed, size), other)()
        fits = verb in CHANGES[way][2] and (way != "shape" or checked or verb in SEEN_BY_ALL)
        name, value, _ = CHANGES[way if fits else "dtype"]
        plain = {"dtype": np.dtype("f8"), "op": ReduceOp.SUM, "root": 0, "more": (), "shape": (4,), "long": ()}
        changed = plain | {name: size - 1 if name == "root" else value}
        return [getattr(Draw(seed, size, **forced), verb)() for forced in (plain, changed)]


def check_mismatch(world, seed, checked):
    """Only the call that does not fit fails, on all ranks of its group alike; the others go on as if nothing was."""
    program = Mismatched(seed, world.size, checked)
    run = Run(world, program, may_fail=(CollectiveMismatchError,))
    errors = run.go()
    call = program.calls[program.index]
    concerned = world.rank in call.members
    note = f"seed {seed}, rank {world.rank}, call {program.index}\n{program}\n{errors}"
    assert list(errors) == [program.index] * concerned, note
    assert len({text for texts in world.all_gather_object(list(map(str, errors.values()))) for text in texts}) == 1, (
        note
    )
    run.free()


# ---- calls that one rank does not make, or not then
class Disordered(Run):
    """A run in which one rank goes wrong once; all end at their first error.

    Parameters
    ----------
    kind : str
        How it goes wrong.
    at : int
        Call in which it does.
    odd : bool
        Whether it is this rank.
    """

    def __init__(self, world, program, kind, at, odd):
        super().__init__(world, program)
        self._kind, self._at, self._odd = kind, at, odd

    def end(self):
        """Make all calls, then meet on all groups; return what went wrong."""
        try:
            self.go()
            for group in sorted(self.comms):
                self.comms[group].barrier()
        except (DistError, LeftError) as e:
            return e
        return None

    def calls(self):
        calls = list(enumerate(self.program.calls))
        if self._odd and self._kind == "order":
            calls[self._at : self._at + 2] = calls[self._at : self._at + 2][::-1]
        return calls

    def make(self, call):
        if self._odd and self.index == self._at:
            call = self._go_wrong(call)
        if call is not None:
            super().make(call)

    def _go_wrong(self, call):
        if self._kind == "raise":
            raise LeftError
        if self._kind == "late":
            time.sleep(1.5 * self.world.timeout_s)
        changes = {"form": {"blocking": not call.blocking}, "group": {"group": Twinned.TWIN}}.get(self._kind, {})
        return None if self._kind == "skip" else call.changed(**changes)


class Twinned(Program):
    """A short program that begins with a duplicate of the world, and sooner or later forms another group."""

    TWIN = 1

    def __init__(self, seed, size):
        super().__init__(seed, size, num_calls=0)
        self.groups.append(self.groups[0])
        self.calls.append(Call("dup", 0, self.groups[0], details={"made": self.TWIN}))
        self.calls += [self.draw(index) for index in range(1, 5)]
        self.calls.append(self.draw_group(0))
        self.calls += [self.draw(index) for index in range(6, 9)]


def check_disorder(world, seed, kind):
    """Ranks that are let down get an error within the limits."""
    program, rng = Twinned(seed, world.size), np.random.default_rng([seed, 5])
    fitting = [
        index for index, call in enumerate(program.calls) if index and len(call.members) > 1 and _fits(kind, call)
    ]
    if not fitting:
        return
    index = int(rng.choice(fitting))
    call = program.calls[index]
    odd = int(rng.choice(call.members))
    run, start = Disordered(world, program, kind, index, world.rank == odd), time.monotonic()
    error, elapsed_s = run.end(), time.monotonic() - start
    note = f"seed {seed}, rank {world.rank}: {kind} of rank {odd} at {index}, {elapsed_s} s\n{program}\n{error}"
    assert elapsed_s < 4 * world.timeout_s + 10, note
    let_down = world.rank in call.members and world.rank != odd and kind != "order" and call.is_collective
    assert error is not None or not let_down, note


def _fits(kind, call):
    return (kind != "form" or call.shares) and (kind != "group" or (call.shares and call.group == 0))
