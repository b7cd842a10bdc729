"""One rank's run of a random program: it waits, polls and dallies as it likes, and looks at all that it gets."""

import time

import numpy as np
from random_programs import layout, same

from hpcdist.comm import new_group, objects
from hpcdist.comm.init import using_group
from hpcdist.comm.work import Work

TAGS = 1000


class WrongResultError(AssertionError):
    """A call has not returned what it has to."""


class Pending:
    """A work, and what has to come of it."""

    def __init__(self, work, check):
        self.work, self._check, self._asked = work, check, False

    def wait(self, chance):
        while chance(0.3):
            self.work.test()
        self._check(self.work.wait())


class Run:
    """Rank ``world.rank`` of a program. ``errors`` are those of calls that ``may_fail``, by index.

    Parameters
    ----------
    world : Communicator
    program : Program
    may_fail : tuple of type
        Errors that do not end the run.
    """

    def __init__(self, world, program, may_fail=()):
        self.world, self.program, self.may_fail = world, program, may_fail
        self.comms, self.pending, self.errors = {0: world}, [], {}
        self._rng = np.random.default_rng([program.seed, world.rank, 7])
        self.index = 0

    def chance(self, probability):
        return self._rng.random() < probability

    def go(self):
        """Make all calls, in order."""
        for index, call in self.calls():
            self.index = index
            if self.world.rank in call.members and call.group in self.comms:
                self._dally()
                self._attempt(index, lambda call=call: self.make(call))
            self._wait_for_some(0.25)
        self._wait_for_some(1.0)
        return self.errors

    def calls(self):
        """Return the calls of this rank, each with its place."""
        return list(enumerate(self.program.calls))

    def free(self):
        """Give the groups back."""
        for group in sorted(self.comms, reverse=True)[:-1]:
            self.comms[group].free()

    def make(self, call):
        comm = self.comms[call.group]
        if call.shares:
            self._collective(comm, call)
        else:
            getattr(self, f"_{call.kind}")(comm, **call.details)

    # ---- when
    def _dally(self):
        if self.chance(0.05):
            time.sleep(float(self._rng.random()) * 3e-3)
        if self.chance(0.1):
            self.world.poll()

    def _wait_for_some(self, probability):
        for place in self._rng.permutation(len(self.pending)):
            if self.chance(probability):
                index, pending = self.pending[place]
                self.pending[place] = None
                self._attempt(index, lambda pending=pending: pending.wait(self.chance))
        self.pending = [entry for entry in self.pending if entry is not None]

    def _attempt(self, index, act):
        try:
            act()
        except self.may_fail as e:
            self.errors[index] = e

    def _expect(self, value, check):
        """Look at a result, now or when it is there."""
        if not isinstance(value, Work):
            check(value)
            return
        if self.chance(0.2):
            self.world.watch(value)
        self.pending.append((self.index, Pending(value, check)))

    def _check(self, got, expected, note=""):
        if not same(got, expected):
            call = self.program.calls[self.index]
            raise WrongResultError(
                f"rank {self.world.rank}, seed {self.program.seed} of {self.program.size}: {note}\n{call}\n"
                f"got {got!r}\nexpected {expected!r}\n{self.program}"
            )

    # ---- calls
    def _collective(self, comm, call):
        share = call.shares[comm.rank]
        given = [x for x in share.args if isinstance(x, np.ndarray) and x is not share.options.get("out")]
        given = [] if share.verb == "scatter" else given
        before = [x.copy() for x in given]

        def check(value):
            self._check(value, share.expected, f"result of {share}")
            if share.options.get("out") is not None and value is not None:
                self._check(share.options["out"], share.expected, "out")
            for x, copy in zip(given, before, strict=True):
                self._check(x, copy, "argument")

        self._expect(share.start(comm, call.blocking), check)

    def _pair(self, comm, x, pair):
        source, dest = pair
        blocking = self.program.calls[self.index].blocking
        if comm.rank == source:
            self._expect((comm.send if blocking else comm.isend)(x, dest, self._tag()), lambda _: None)
        if comm.rank == dest:
            out = layout(np.full(x.shape, 9).astype(x.dtype), "Fortran")
            receive = comm.recv if blocking else comm.irecv
            self._expect(receive(out, source, self._tag()), lambda got: self._check(got, x, "message"))

    def _ring(self, comm, arrays, step):
        left, right = (comm.rank - step) % comm.size, (comm.rank + step) % comm.size
        x = arrays[left]
        self._expect(comm.isend(arrays[comm.rank], right, self._tag()), lambda _: None)
        out = layout(np.full(x.shape, 9).astype(x.dtype), "strided")
        self._expect(comm.irecv(out, left, self._tag()), lambda got: self._check(got, x, "message of the left"))

    def _fan_in(self, comm, arrays, root):
        works = [comm.isend(arrays[comm.rank], root, self._tag())]
        if comm.rank == root:
            receives = [
                comm.irecv(np.empty(arrays[0].shape, arrays[0].dtype), tag=self._tag()) for _ in range(comm.size)
            ]
            got = {work.source: x for work, x in [(work, work.wait()) for work in receives]}
            self._check([got[rank] for rank in sorted(got)], arrays[: comm.size], "messages of all")
        for work in works:
            self._expect(work, lambda _: None)

    def _tag(self):
        return self.index % TAGS

    def _object(self, comm, verb, values, root):
        mine = values[comm.rank]
        if verb == "all_gather":
            got, expected = comm.all_gather_object(mine), values
        elif verb == "broadcast":
            got, expected = comm.broadcast_object(mine, root), values[root]
        elif verb == "gather":
            got, expected = objects.gather(comm, mine, root), values if comm.rank == root else None
        elif verb == "scatter":
            got, expected = objects.scatter(comm, values if comm.rank == root else None, root), mine
        else:
            got, expected = self._send_object(comm, mine, values, root)
        if repr(got) != repr(expected) or not same(*(np.concatenate(_arrays(v)) for v in (got, expected))):
            raise WrongResultError(f"object: {self.program.seed}, {got!r}, {expected!r}")

    def _send_object(self, comm, mine, values, root):
        peer = (root + 1) % comm.size
        if comm.rank == root != peer:
            objects.send(comm, mine, peer, self._tag())
        if comm.rank == peer != root:
            got, source = objects.recv(comm, root, self._tag())
            assert source == root
            return got, values[root]
        return None, None

    # ---- groups
    def _split(self, comm, colors, keys, made):
        color = colors[comm.rank]
        part = comm.split(color, keys[comm.rank])
        if color is None:
            assert part is None
        else:
            self._remember(made[color], part)

    def _create_group(self, comm, places, made):
        self._remember(made, comm.create_group(places))

    def _new_group(self, comm, places, made):
        del comm
        with using_group(self.world):
            self._remember(made, new_group([self.world.members[place] for place in places]))

    def _dup(self, comm, made):
        self._remember(made, comm.dup())

    def _split_node(self, comm, made):
        self._remember(made, comm.split_node())

    def _remember(self, group, comm):
        members = self.program.groups[group]
        assert [self.world.members[rank] for rank in members] == list(comm.members), (members, comm.members)
        assert comm.members[comm.rank] == self.world.members[self.world.rank]
        self.comms[group] = comm


def _arrays(value):
    if isinstance(value, list):
        return [x for v in value for x in _arrays(v)]
    return [np.zeros(0)] if value is None else [value["x"]]
