"""What merged flight recorders tell a reader: one paragraph, or a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcdist.comm.flight import Flight, Wait, is_exit, is_message
from hpcdist.comm.members import name_members
from hpcdist.comm.recorder import Entry

__all__ = ["paragraph", "record", "sentence", "table"]

_MOST_WAITS, _MOST_RANKS, _MOST_NAMED = 4, 3, 8
"""Calls and missing ranks that are told of one by one, and ranks that are listed; the rest is counted."""


def paragraph(flight: Flight) -> str:
    """Say who stands where, who is missing, and since when."""
    if not flight.rings:
        return "No rank has left a record here."
    waits = flight.waits()
    told = [sentence(flight, wait) for wait in waits[:_MOST_WAITS]]
    if len(waits) > _MOST_WAITS:
        told.append(f"{len(waits) - _MOST_WAITS} more calls are under way.")
    if not waits:
        told.append("No call is under way.")
    return " ".join([*told, *_silences(flight, _mentioned(waits))])


def sentence(flight: Flight, wait: Wait) -> str:
    """Say of one call who stands in it, and what is known of those that have not come."""
    if is_message(wait.first):
        return _message(flight, wait)
    if len(wait.verbs) > 1:
        return _mismatch(flight, wait)
    if wait.missing:
        return _missing(flight, wait)
    who, have = _ranks(wait.entries), _have(wait.entries)
    gone_on = [f"; {_whereabouts(flight, rank, alone=False)}" for rank in sorted(wait.others)[:_MOST_RANKS]]
    return (
        f"All have come to {_call(wait.first)}, in which {who} {have} been for {_for(flight, wait)}{''.join(gone_on)}."
    )


def _missing(flight: Flight, wait: Wait) -> str:
    absent = f"{_ranks(wait.missing).capitalize()} {_have(wait.missing)} not come to {_call(wait.first)}"
    present = f"in which {_ranks(wait.entries)} {_have(wait.entries)} waited for {_for(flight, wait)}"
    known = [_whereabouts(flight, rank, alone=len(wait.missing) == 1) for rank in wait.missing[:_MOST_RANKS]]
    return f"{absent}, {present}; {'; '.join(known)}."


def _mismatch(flight: Flight, wait: Wait) -> str:
    entries = {**wait.others, **wait.entries}
    calls = [
        f"{_ranks(ranks)} called {entries[ranks[0]].verb} ({_about(entries[ranks[0]])})"
        for ranks in wait.verbs.values()
    ]
    first = wait.first
    text = f"Ranks differ in call no. {first.number} of group {first.group!r}: {', '.join(calls)}"
    return f"{text}; {_ranks(wait.entries)} {_have(wait.entries)} been there for {_for(flight, wait)}."


def _message(flight: Flight, wait: Wait) -> str:
    (rank, entry), *_ = wait.entries.items()
    peer = f"rank {wait.missing[0]}" if wait.missing else "any rank"
    way = "to" if entry.verb == "send" else "from"
    text = f"Rank {rank} has been in {entry.verb} {way} {peer} ({_about(entry)})"
    known = f"; {_whereabouts(flight, wait.missing[0], alone=False)}" if wait.missing else ""
    return f"{text} for {_for(flight, wait)}{known}."


def _whereabouts(flight: Flight, rank: int, *, alone: bool) -> str:
    """Say what a rank does, or did last; ``alone``: where no other is spoken of, so that it need not be named."""
    who, whose = ("it", "its") if alone else (f"rank {rank}", f"rank {rank}'s")
    ring = flight.rings.get(rank)
    if ring is None:
        return f"{who} has left no record here"
    if ring.ended:
        return f"{who} ended {_seconds(flight.now - ring.ended)} before"
    standing, last = flight.standing(rank), flight.last(rank)
    if standing and is_exit(standing[0]):
        does = f"{who} came to the end of the program {_seconds(flight.now - standing[0].start)} before"
    elif standing:
        does = f"{who} stands in {_call(standing[0])}, for {_seconds(flight.now - standing[0].start)}"
    elif last is None:
        does = f"{who} has made no call yet"
    else:
        ended = _seconds(flight.now - abs(last.end))
        does = f"{whose} last call was {last.verb}{_number(last)} at {_place(last)}, ended {ended} before"
    return f"{does}{_life(flight, rank)}"


def _life(flight: Flight, rank: int) -> str:
    silent_s, state = flight.silent_s(rank), flight.process_state(rank)
    if state == "stopped":
        return ", and its process is stopped"
    if silent_s:
        is_gone = bool(state) and not flight.is_over  # which tells it from others
        return f", and has given no sign of life for {_seconds(silent_s)}" + (
            ": its process is gone" if is_gone else ""
        )
    return ""


def _silences(flight: Flight, told: set[int]) -> Iterator[str]:
    """Say which other ranks are not there any more."""
    absent = [rank for rank in range(flight.size) if rank not in flight.rings and rank not in told]
    ended = [rank for rank, ring in flight.rings.items() if ring.ended and rank not in told]
    silent = [rank for rank in flight.rings if flight.silent_s(rank) and rank not in told]
    for ranks, text in ((absent, "left no record here"), (ended, "ended"), (silent, "given no sign of life lately")):
        if ranks:
            yield f"{_ranks(ranks).capitalize()} {_have(ranks)} {text}."


def _mentioned(waits: Sequence[Wait]) -> set[int]:
    return {rank for wait in waits[:_MOST_WAITS] for rank in (*wait.entries, *wait.missing)}


# ---- words
def _call(entry: Entry) -> str:
    if is_exit(entry):
        return "the end of the program"
    group = "" if is_message(entry) else f" of group {entry.group!r}"
    return f"{entry.verb}{_number(entry)}{group} ({_about(entry)})"


def _about(entry: Entry) -> str:
    array = f"{entry.dtype} {entry.shape}, " if entry.shape else ""
    return array + _place(entry)


def _number(entry: Entry) -> str:
    return "" if is_message(entry) or is_exit(entry) else f" no. {entry.number}"


def _place(entry: Entry) -> str:
    return Path(entry.site).name


def _ranks(ranks: Iterable[int]) -> str:
    found = sorted(ranks)
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) > _MOST_NAMED:
        return f"{len(found)} ranks ({name_members(found)})"
    return f"ranks {', '.join(map(str, found[:-1]))} and {found[-1]}"


def _have(ranks: Collection[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _for(flight: Flight, wait: Wait) -> str:
    return _seconds(flight.now - wait.since)


def _seconds(seconds: float) -> str:
    return f"{max(seconds, 0.0):.1f} s" if seconds < 10 else f"{seconds:.0f} s"


# ---- everything, for eyes and for machines
def table(flight: Flight, num_calls: int) -> str:
    """Return the last calls of each rank, one a line, the newest last."""
    return "\n".join(line for rank in flight.rings for line in _table_of(flight, rank, num_calls))


def _table_of(flight: Flight, rank: int, num_calls: int) -> Iterator[str]:
    ring = flight.rings[rank]
    state = "ended" if ring.ended else flight.process_state(rank) or "running"
    silent_s = flight.silent_s(rank)
    silent = f", silent for {_seconds(silent_s)}" if silent_s else ""
    yield f"rank {rank} of {flight.size} ({ring.host}, pid {ring.pid}): {state}{silent}"
    for entry in ring.entries[-num_calls:]:
        took = "under way" if not entry.end else f"{(abs(entry.end) - entry.start) * 1e3:.3f} ms"
        failed = ", failed" if entry.end < 0 else ""
        number = f"{entry.verb}{_number(entry)}"
        age = f"{_seconds(flight.now - entry.start)} ago"
        array = f"{entry.dtype} {entry.shape}".strip()
        group = f"{entry.group} [{entry.members}]"
        yield f"  {age:>9}  {number:<24} {group:<16} {array:<20} {took + failed:<20} {entry.site}"


def record(flight: Flight) -> dict[str, Any]:
    """Return what :func:`paragraph` and :func:`table` say as plain objects. Times are seconds since the epoch."""
    return {
        "size": flight.size,
        "now": flight.now,
        "says": paragraph(flight),
        "waits": [
            {
                "call": wait.first._asdict(),
                "ranks": sorted(wait.entries),
                "gone_on": sorted(wait.others),
                "missing": wait.missing,
                "verbs": wait.verbs,
                "since": wait.since,
            }
            for wait in flight.waits()
        ],
        "ranks": [
            {**ring._asdict(), "entries": [entry._asdict() for entry in ring.entries]} for ring in flight.rings.values()
        ],
    }
