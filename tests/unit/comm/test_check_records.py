"""What ranks tell each other before a call, and in the roll call."""

import random

import numpy as np
import pytest

from hpcdist.comm.mpi import announcement
from hpcdist.comm.mpi.standstill import Statement, circle, stuck
from hpcdist.comm.operation import Operation


# ---- sizes that only two ranks know
def balances(sends, expects):
    size = len(sends)
    return [
        announcement.balance(rank, (sends[rank], [expects[rank][other] for other in range(size)]))
        for rank in range(size)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_sizes_that_fit_add_up_to_zero(size):
    draw = random.Random(size)
    for _ in range(20):
        sends = [[draw.choice([0, 8, 2**40, draw.randrange(10**6)]) for _ in range(size)] for _ in range(size)]
        expects = [[sends[source][rank] for source in range(size)] for rank in range(size)]
        assert announcement.fits(balances(sends, expects))


def test_sizes_that_do_not_fit_do_not():
    """Neither one that differs, nor two that are exchanged, nor what a sum would not see."""
    draw = random.Random(4)
    for _ in range(200):
        sends = [[draw.randrange(64) for _ in range(3)] for _ in range(3)]
        expects = [[sends[source][rank] for source in range(3)] for rank in range(3)]
        a, b = draw.sample([(x, y) for x in range(3) for y in range(3)], 2)
        wrong = [list(row) for row in expects]
        wrong[a[0]][a[1]], wrong[b[0]][b[1]] = expects[b[0]][b[1]], expects[a[0]][a[1]]
        assert announcement.fits(balances(sends, wrong)) == (wrong == expects)
        wrong[a[0]][a[1]] += 8
        wrong[b[0]][b[1]] -= 8
        assert not announcement.fits(balances(sends, wrong)) or wrong == expects


def test_a_record_keeps_verb_and_place_of_a_long_call():
    site = "/" + "deep/" * 60 + "job.py:12"
    terms = tuple(range(1000))
    operation = Operation("all_gather", 3, 4, "world", 9, (2,), np.dtype("f4"), terms, "all", site)
    record = announcement.record(operation, ([1] * 500, [2] * 500))
    assert len(record) == len(announcement.record(operation._replace(terms=(), site="a.py:1"), None))
    text = record[announcement._HEAD.size :].rstrip(b"\0").decode()
    assert text.startswith("rank 3: all_gather(0, 1, 2")
    assert text.endswith("deep/job.py:12")
    assert "..., at " in text


# ---- who waits for whom
def waiting(rank, key="", number=1, awaited=(), counts=None, *, verb="barrier", messages=(), alone=True):
    return Statement(rank, 1, f"rank {rank}", verb, key, number, verb, awaited, counts or {}, list(messages), alone)


def found(*statements):
    return sorted(s.rank for s in circle(statements[0], {s.rank: s for s in statements[1:]}))


def test_two_groups_in_turn():
    a = waiting(0, "A", 1, (0, 1), {"A": 1, "B": 0})
    b = waiting(1, "B", 1, (0, 1), {"A": 0, "B": 1})
    assert found(a, b) == [0, 1]
    assert found(b, a) == [0, 1]


def test_a_call_that_was_made_is_not_waited_for():
    """It was posted, and its rank waits for something else meanwhile."""
    a = waiting(0, "A", 1, (0, 1), {"A": 1, "B": 0})
    b = waiting(1, "B", 1, (0, 1), {"A": 1, "B": 1})
    assert found(a, b) == []


def test_circle_of_three_and_one_who_waits_for_it():
    def pair(rank, *others):
        key = "".join(map(str, sorted((rank, *others))))
        return waiting(rank, key, 1, others, {key: 1, **dict.fromkeys({"01", "12", "02"} - {key}, 0)})

    ring = [pair(0, 1), pair(1, 2), pair(2, 0)]
    ring[1] = ring[1]._replace(counts={"12": 1, "01": 0})
    ring[2] = ring[2]._replace(counts={"02": 1, "12": 0})
    ring[0] = ring[0]._replace(counts={"01": 1, "02": 0})
    assert found(*ring) == [0, 1, 2]
    outside = waiting(3, "all", 5, (0, 1, 2, 3), {"all": 5})
    ring[0].counts["all"] = 4
    assert found(outside, *ring) == []
    assert sorted(s.rank for s in stuck([outside, *ring], ring[:1])) == [0, 1, 2, 3]


def test_a_rank_that_has_other_threads_may_still_come():
    a = waiting(0, "A", 1, (0, 1), {"A": 1, "B": 0})
    b = waiting(1, "B", 1, (0, 1), {"A": 0, "B": 1}, alone=False)
    assert found(a, b) == []


def test_message_against_message_and_collective():
    recv = waiting(0, awaited=(1,), verb="recv", counts={"A": 0})
    barrier = waiting(1, "A", 1, (0, 1), {"A": 1})
    assert found(recv, barrier) == [0, 1]
    assert found(recv, waiting(1, awaited=(0,), verb="recv")) == [0, 1]
    assert found(recv, barrier._replace(messages=[("send", 2), ("recv", 0)])) == [0, 1]


def test_a_message_under_way_may_take_its_time():
    recv = waiting(0, awaited=(1,), verb="recv", counts={"A": 0})
    barrier = waiting(1, "A", 1, (0, 1), {"A": 1}, messages=[("send", 0)])
    assert found(recv, barrier) == []
    send = waiting(0, awaited=(1,), verb="send", counts={"A": 0})
    assert found(send, barrier._replace(messages=[("recv", None)])) == []


def test_same_place_of_a_group_and_another_call():
    a = waiting(0, "A", 3, (0, 1))
    assert a.differs(waiting(1, "A", 3, (0, 1), verb="all_reduce"))
    assert not a.differs(waiting(1, "A", 3, (0, 1)))
    assert not a.differs(waiting(1, "A", 4, (0, 1), verb="all_reduce"))
    assert not waiting(0, verb="send").differs(waiting(1, verb="recv"))
