"""What the verbs of MPI ranks are made of: records, comparisons between ranks, waits that say who is late."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from mpi4py import MPI

from hpcdist import config
from hpcdist.comm.debug import compares
from hpcdist.comm.mpi import verbs
from hpcdist.comm.mpi.attendance import attend, places
from hpcdist.comm.mpi.check import Checker
from hpcdist.comm.mpi.crowding import crowded
from hpcdist.comm.mpi.device import Cuda
from hpcdist.comm.mpi.gate import Gate, gate_bytes
from hpcdist.comm.mpi.handle import duplicate
from hpcdist.comm.mpi.plain import PlainCommunicator
from hpcdist.comm.mpi.polling import Late, poll
from hpcdist.comm.mpi.rollcall import RollCall, Seat
from hpcdist.comm.mpi.shared import node_name, share
from hpcdist.comm.mpi.standstill import CREATION
from hpcdist.comm.mpi.window import Window, WindowCalls, window_bytes
from hpcdist.comm.mpi.work import MpiWork, failure, sweep
from hpcdist.comm.operation import Operation, call_site
from hpcdist.comm.recorder import process_recorder
from hpcdist.comm.work import Work
from hpcdist.errors import CollectiveMismatchError, DistError, explain

__all__ = ["RecordedCommunicator"]

T = TypeVar("T")

_MESSAGES = ("send", "recv")
_MOST_SHOWN = 4


class RecordedCommunicator(PlainCommunicator, observed=False):
    """A group of MPI ranks whose calls are recorded and compared. Creation is collective over ``handle``.

    Parameters
    ----------
    handle : MPI.Intracomm
        Used for nothing else.
    name, timeout_s, reproducible, max_count, cuda
        As for :class:`PlainCommunicator`.
    check : bool, optional
        Whether ranks compare their calls. Default: HPCDIST_CHECK.
    nodes : sequence of int, optional
        For every rank a number that ranks of its node share. Default: the ranks find out.
    direct : bool, optional
        Whether to use blocking calls where all ranks are on one node. Default: unless they share cores.
    roll_call : RollCall, optional
        Of the group that this one comes from. Default: a new one.

    Raises
    ------
    CollectiveMismatchError
        On every rank, if they do not give the same options.
    """

    def __init__(
        self,
        handle: MPI.Intracomm,
        *,
        name: str = "world",
        timeout_s: float = 1800.0,
        reproducible: bool = False,
        max_count: int | None = None,
        cuda: Cuda = Cuda(),  # noqa: B008 (a tuple)
        check: bool | None = None,
        nodes: Sequence[int] | None = None,
        direct: bool | None = None,
        roll_call: RollCall | None = None,
    ) -> None:
        common: dict[str, Any] = {"name": name, "timeout_s": timeout_s, "reproducible": reproducible}
        super().__init__(handle, **common, max_count=max_count, cuda=cuda)
        self.check = compares() if check is None else check
        self.direct = not crowded() if direct is None else direct
        self.nodes = self._get_to_know() if nodes is None else tuple(nodes)
        self._recorder = process_recorder()
        self._members = attend(handle)
        self.blocking_calls = WindowCalls(handle, self._open_window)
        self._gate = self._make_gate()
        self._checker = Checker(self.plain(), always=self.check) if self.size > 1 else None
        self.roll_call = roll_call or RollCall(handle if self.size == 1 else duplicate(handle, timeout_s))
        self._seat = self.roll_call.enroll(self, handle)
        self._under_way: dict[int, Operation] = {}

    def plain(self) -> PlainCommunicator:
        """Return the same ranks with a message space of their own, neither recorded nor compared.

        Collective over the group.
        """
        return self._plain(duplicate(self.handle, self.timeout_s))

    def _plain(self, handle: MPI.Intracomm) -> PlainCommunicator:
        return PlainCommunicator(handle, name=self.name, timeout_s=self.timeout_s, max_count=self.max_count)

    def _get_to_know(self) -> tuple[int, ...]:
        """Return for every rank the lowest rank on its node; see that all have the same options.

        Collective over the group.
        """
        options = f"check={self.check}, reproducible={self.reproducible}, max_count={self.max_count}"
        plain = PlainCommunicator(self.handle, name=self.name, timeout_s=self.timeout_s, max_count=config.MAX_COUNT)
        told = plain.all_gather_object((node_name(), options, self.direct))
        self.direct = all(direct for _, _, direct in told)
        if len({text for _, text, _ in told}) > 1:
            rows = "\n           ".join(f"rank {rank}: {text}" for rank, (_, text, _) in enumerate(told))
            do = "give the same options, and the same HPCDIST_ variables, to all ranks"
            raise CollectiveMismatchError(explain(f"group {self.name!r}: options differ", got=rows, do=do))
        names = [name for name, _, _ in told]
        return tuple(map(names.index, names))

    def _make_gate(self) -> Gate | None:
        if self.size == 1 or not self.direct or len(set(self.nodes)) > 1:
            return None
        memory = share(self._plain(self.handle), gate_bytes(self.size))
        return None if memory is None else Gate(memory, self.rank, self.size, self.handle.Iprobe)

    def _open_window(self) -> Window | None:
        memory = share(self._plain(self.handle), window_bytes(self.size))
        return None if memory is None else Window(memory, self.rank, self.size, self.timeout_s)

    # ---- groups
    def dup(self, *, check: bool | None = None) -> Self:
        """Return the same ranks with a message space of their own; see the base class. Collective over the group."""
        before, wanted = self.check, self.check if check is None else check
        self._complete(verbs.meeting(self, "dup", (f"check={wanted}",)))
        self.check = wanted
        try:
            return super().dup()
        finally:
            self.check = before

    def free(self) -> None:
        """Give back the message space; it cannot be used any more. Collective over the group.

        Raises
        ------
        DistError
            If operations are still under way.
        """
        if self.freed:
            return
        sweep()
        if self._checker is not None:
            self._checker.advance()
        if self._under_way:
            do = "wait for every work before the group is freed"
            got = ", ".join(f"{o.verb}, called at {o.site}" for o in list(self._under_way.values())[:_MOST_SHOWN])
            what = f"free of group {self.name!r}: {len(self._under_way)} under way"
            raise DistError(explain(what, got=got, expected="none", do=do))
        if self._checker is not None:
            self._checker.side.free()
        super().free()

    def _options(self, handle: MPI.Intracomm) -> dict[str, Any]:
        nodes = [self.nodes[place] for place in self._places(handle)]
        return {
            **super()._options(handle),
            "check": self.check,
            "nodes": nodes,
            "direct": self.direct,
            "roll_call": self.roll_call,
        }

    # ---- what the roll call asks
    @property
    def num_collectives(self) -> Callable[[], int]:
        """What returns how many collectives this rank has posted, also when the group is gone."""
        return functools.partial(self._numbers.__getitem__, False)

    def open_messages(self) -> list[tuple[str, int | None]]:
        """Return the messages of this rank that are under way: "send" or "recv", and the other rank or None."""
        return [(o.verb, o.terms[0]) for o in list(self._under_way.values()) if o.verb in _MESSAGES]  # type: ignore[misc]

    # ---- what the fast lanes need
    def has_waiting(self) -> bool:
        """Say whether calls that were posted are yet to be compared, and have to go first."""
        return self._checker is not None and self._checker.has_waiting()

    def count(self, *, message: bool = False) -> int:
        """Count a collective, or a message; return its number."""
        self._numbers[message] = number = self._numbers[message] + 1
        return number

    def keep(self, operation: Operation, ticket: int) -> dict[str, Any]:
        """Keep what was posted until it has ended; return what has to be called then, and when a wait lasts long."""
        self._under_way[ticket] = operation

        def ended(failed: bool) -> None:
            self._under_way.pop(ticket, None)
            self._recorder.end(ticket, failed=failed)

        def late(elapsed_s: float) -> None:
            self._recorder.wait(ticket, elapsed_s)
            try:
                self._ask(operation, elapsed_s)
            except CollectiveMismatchError:
                self._recorder.end(ticket, failed=True)
                raise

        return {"ended": ended, "late": late}

    def wait_at_gate(self, operation: Operation) -> None:
        """Wait until all have come to a call that this rank has come to."""
        assert self._gate is not None
        self._gate.wait(operation, self.timeout_s, functools.partial(self._ask, operation))

    # ---- what the verbs are made of
    def _create(self, ranks: Sequence[int], late: Late | None) -> MPI.Intracomm:
        seat, operation = self._creation(ranks)
        members = f"{places(self.handle, sorted(ranks))}{CREATION}"
        ticket, failed = self._recorder.begin(operation, members, limit_s=self.timeout_s), True
        try:
            with self.roll_call.creating(seat):
                handle = super()._create(ranks, late or functools.partial(self.roll_call.late, seat, operation))
            failed = False
        finally:
            self._recorder.end(ticket, failed=failed)
        return handle

    def _creation(self, ranks: Sequence[int]) -> tuple[Seat, Operation]:
        """Return what stands for a group that is yet to be formed, and the forming of it."""
        everyone = sorted(ranks)
        seat = self.roll_call.reserve(self.handle, everyone)
        peers = f"rank {', '.join(str(rank) for rank in everyone if rank != self.rank)}"
        place = (self.rank, self.size, self.name, self.roll_call.num_created(seat) + 1)
        return seat, Operation("create_group", *place, None, None, (tuple(ranks),), peers, call_site())

    def _convene(self, verb: str) -> None:
        if self._gate is None:
            super()._convene(verb)
        else:
            self._meet(verb)  # all pass or none does

    def _meet(self, verb: str) -> None:
        self._complete(verbs.meeting(self, verb, ()))

    def _start(self, plan: verbs.Plan[T]) -> Work[T]:
        operation = self._operation(plan)._replace(blocking=False)
        if self.size == 1:
            return super()._post(plan, operation)
        if self._gate is not None and plan.verb not in _MESSAGES:
            self._gate.post(operation.number)
        return self._launch(plan, operation)

    def _launch(self, plan: verbs.Plan[T], operation: Operation) -> Work[T]:
        """Post a verb, now or when it has been compared; record when it is done, and whether somebody waits for it."""
        self.roll_call.callers.add(threading.get_ident())
        kept = self.keep(operation, self._recorder.begin(operation, self._members))

        def post() -> MpiWork[T]:
            return self._work(plan, operation, plan.post(self._posting), **kept)

        if self._checker is None or plan.verb in _MESSAGES or not self._checker.concerns(operation):
            return post()
        return self._checker.announce(operation, plan.sizes, post, **kept, limit_s=self.timeout_s)

    def _complete(self, plan: verbs.Plan[T]) -> T:
        """Carry out a collective: by blocking calls where all ranks have come."""
        operation = self._operation(plan)
        if self.size == 1:
            return super()._post(plan, operation).wait()
        if self._gate is None and not plan.blocking:
            return self._launch(plan, operation).wait()
        self.roll_call.callers.add(threading.get_ident())
        ticket, failed = self._recorder.begin(operation, self._members, limit_s=self.timeout_s), True
        try:
            self._assemble(plan, operation)
            posted = plan.post(self.blocking_calls)
            value = self._work(plan, operation, posted).wait() if any(posted) else plan.finish()
            failed = False
        except MPI.Exception as e:
            raise failure(operation, e) from e
        finally:
            self._recorder.end(ticket, failed=failed)
        return value

    def _assemble(self, plan: verbs.Plan[Any], operation: Operation) -> None:
        """Wait until all ranks have come to this call, and to those before it; raise on all if calls differ."""
        late = functools.partial(self._ask, operation)
        if self._checker is not None and (self.check or (self._gate is None and self._checker.compares(operation))):
            self._compare(self._checker, plan, operation)
        if self._gate is not None:
            self._gate.enter(operation, self.timeout_s, late)
        if self._checker is not None and not poll(self._checker.flushed, self.timeout_s, late):
            raise operation.timed_out(self.timeout_s)
        if self._gate is None:
            for _ in range(2):  # the first may have been posted by ranks that have given up since, the second is not
                met = verbs.barrier(self).post(self._posting)  # has a time limit, which blocking calls have not
                self._work(plan._replace(finish=_nothing), operation, met, late=late).wait()

    def _compare(self, checker: Checker, plan: verbs.Plan[Any], operation: Operation) -> None:
        comparison = checker.compare(operation, plan.sizes)
        try:
            comparison.wait(self.timeout_s, functools.partial(self._ask, operation))
        except BaseException as e:
            if self._gate is not None and not isinstance(e, CollectiveMismatchError):
                self._gate.give_up()
            raise

    def _ask(self, operation: Operation, elapsed_s: float) -> None:
        """Find out what keeps the others."""
        if self._gate is not None and not operation.blocking and operation.verb not in _MESSAGES:
            self._gate.check_posted(operation)
        self.roll_call.late(self._seat, operation, elapsed_s)


def _nothing() -> None:
    pass
