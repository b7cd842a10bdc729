"""Merged flight recorders: who stands where, who is missing, and since when."""

import json
import os
import time

import pytest

from hpcdist import cli
from hpcdist.comm.flight import Flight, load
from hpcdist.comm.flight_report import paragraph, record, table
from hpcdist.comm.recorder import Entry, Recorder, Ring

NOW = 1000.0
TEXTS = {"group": "world", "members": "0-3", "shape": "(1024,)", "dtype": "float32", "nbytes": "4096"}


def call(verb, number, start, end=0.0, site="/home/me/job.py:12", peers="all 4 ranks", **texts):
    texts = {**TEXTS, **texts}
    return Entry(0, start, end, number, verb=verb, peers=peers, site=site, **texts)


def flight(*calls, size=None, beats=(), ended=()):
    """Return the flight of ranks that made these calls; None: no record of that rank."""
    rings = [
        Ring(
            rank=rank,
            size=size or len(calls),
            host="far away",
            pid=1,
            time=900.0,
            beat=dict(beats).get(rank, NOW),
            ended=dict(ended).get(rank, 0.0),
            entries=[entry._replace(ticket=1 + i) for i, entry in enumerate(made)],
        )
        for rank, made in enumerate(calls)
        if made is not None
    ]
    return Flight(rings, NOW)


DONE = call("broadcast", 16, 960.0, 968.0, "job.py:10")
WAITS = [DONE, call("all_reduce", 17, 969.0)]


def test_one_rank_has_not_come():
    assert paragraph(flight(WAITS, WAITS, [DONE], WAITS)) == (
        "Rank 2 has not come to all_reduce no. 17 of group 'world' (float32 (1024,), job.py:12), in which ranks 0, 1"
        " and 3 have waited for 31 s; its last call was broadcast no. 16 at job.py:10, ended 32 s before."
    )


def test_several_ranks_have_not_come():
    said = paragraph(flight(WAITS, [DONE], [], None, size=4))
    assert said.startswith("Ranks 1, 2 and 3 have not come to all_reduce no. 17")
    assert "in which rank 0 has waited for 31 s" in said
    assert "; rank 1's last call was broadcast no. 16" in said
    assert "; rank 2 has made no call yet; rank 3 has left no record here." in said


def test_the_missing_rank_stands_elsewhere():
    other = {"group": "tp", "members": "2,3"}
    said = paragraph(flight(WAITS, WAITS, [DONE, call("barrier", 3, 970.0, shape="", **other)], WAITS))
    assert "Rank 2 has not come to all_reduce" in said
    assert "it stands in barrier no. 3 of group 'tp' (job.py:12), for 30 s." in said
    assert "Rank 3 has not come to barrier no. 3 of group 'tp'" in said
    assert said.index("all_reduce") < said.index("barrier")  # the oldest first


def test_ranks_in_different_calls():
    here = [DONE, call("barrier", 17, 969.5, shape="", site="job.py:20")]
    said = paragraph(flight(WAITS, WAITS, here, WAITS))
    assert said == (
        "Ranks differ in call no. 17 of group 'world': ranks 0, 1 and 3 called all_reduce (float32 (1024,), job.py:12),"
        " rank 2 called barrier (job.py:20); ranks 0, 1, 2 and 3 have been there for 31 s."
    )


def test_all_are_there():
    said = paragraph(flight(WAITS, WAITS, WAITS, WAITS))
    assert said.startswith("All have come to all_reduce no. 17")
    assert said.endswith("in which ranks 0, 1, 2 and 3 have been for 31 s.")


def test_a_rank_that_has_gone_on_is_not_missing():
    on = [DONE, call("all_reduce", 17, 969.0, 970.0)]
    said = paragraph(flight(WAITS, on, on, on, beats={2: 980.0}))
    assert said.startswith("All have come to all_reduce no. 17")
    assert "in which rank 0 has been for 31 s; rank 1's last call was all_reduce no. 17" in said
    assert "rank 2's last call was all_reduce no. 17 at job.py:12, ended 30 s before, and has given no sign" in said


def test_a_rank_that_gave_up_stood_there():
    gave_up = [DONE, call("all_reduce", 17, 969.0, -999.0)]
    assert "Rank 2 has not come to all_reduce" in paragraph(flight(gave_up, gave_up, [DONE], gave_up))
    went_on = [*gave_up, call("barrier", 18, 999.0, 999.5)]
    assert paragraph(flight(went_on, went_on, [DONE], went_on)) == "No call is under way."


def test_messages_are_told_by_rank():
    receives = [DONE, call("recv", 1, 990.0, peers="rank 1", members="3,2", group="pair")]
    said = paragraph(flight([DONE], [DONE], [DONE], receives))
    assert said.startswith("Rank 3 has been in recv from rank 2 (float32 (1024,), job.py:12) for 10 s; rank 2's last")


def test_ranks_that_ended_or_give_no_sign_of_life():
    said = paragraph(flight(WAITS, WAITS, [DONE], [DONE], beats={3: 970.0}, ended={2: 980.0}))
    assert "rank 2 ended 20 s before; rank 3's last call was" in said
    assert said.endswith("and has given no sign of life for 30 s.")
    quiet = flight([DONE], [DONE], None, [DONE], size=4, beats={3: 970.0})
    assert paragraph(quiet) == (
        "No call is under way. Rank 2 has left no record here. Rank 3 has given no sign of life lately."
    )


def test_ranks_that_have_come_to_their_end_are_told_of_last():
    gone = call("exit", 1, 988.0, members="0-3#exit", site="the end")
    said = paragraph(flight(WAITS, [DONE, gone], WAITS, WAITS))
    assert said.startswith("Rank 1 has not come to all_reduce no. 17")
    assert "; it came to the end of the program 12 s before. Ranks 0, 2 and 3 have not come to the end of" in said
    assert "the program, in which rank 1 has waited for 12 s; rank 0 stands in all_reduce no. 17" in said


def test_many_ranks_are_counted():
    many = {"members": "0-99"}
    waits = [[call("barrier", 1, 990.0, shape="", **many)]] * 60 + [[]] * 40
    said = paragraph(flight(*waits))
    assert said.startswith("40 ranks (60-99) have not come to barrier no. 1")
    assert "60 ranks (0-59) have waited for 10 s" in said
    assert said.count("has made no call yet") == 3


def test_the_oldest_call_somebody_is_missing_in_is_told():
    posted = [DONE, *(call("all_reduce", n, 969.0 + n / 100) for n in (17, 18))]
    said = paragraph(flight(posted, posted, WAITS, posted))
    assert said.startswith("Rank 2 has not come to all_reduce no. 18")


def test_a_rank_with_many_calls_since_is_not_missing_where_another_is():
    busy = flight(WAITS, [DONE], WAITS, [call("barrier", n, 990.0, 991.0, members="3-4") for n in (1, 2)])
    busy.rings[3].entries[:] = [entry._replace(ticket=entry.ticket + 500) for entry in busy.rings[3].entries]
    assert paragraph(busy).startswith("Rank 1 has not come to all_reduce")
    busy.rings[1].entries.append(call("all_reduce", 17, 970.0)._replace(ticket=2))
    assert paragraph(busy).startswith("Rank 3 has not come to all_reduce")


def test_two_groups_of_the_same_ranks_are_two():
    twin = [DONE, call("all_reduce", 17, 969.0, members="0-3#2")]
    said = paragraph(flight(WAITS, twin, twin, twin))
    assert "Ranks 1, 2 and 3 have not come" in said
    assert "Rank 0 has not come" in said


# ---- files, and the command
@pytest.fixture
def folder(tmp_path):
    for rank in range(2):
        Recorder().move_to(tmp_path, rank, 2)
    return tmp_path


def test_files_of_an_older_larger_job_are_left_out(folder):
    newest = load(folder).rings[1]
    Recorder().move_to(folder, 3, 4)
    os.utime(folder / "rank-3.flight", (0, 0))
    time.sleep(0.01)
    Recorder().move_to(folder, 0, 2)
    found = load(folder)
    assert (list(found.rings), found.size, found.rings[1]) == ([0, 1], 2, newest)


def test_links_lead_to_the_files_of_all_ranks(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("launcher")
    (other / "rank-0.flight").symlink_to(folder / "rank-0.flight")
    assert (list(load(other).rings), load(other).folders) == ([0, 1], [folder])


def test_torn_files_are_passed_over(folder):
    (folder / "rank-1.flight").write_bytes(b"hpcdist")
    assert paragraph(load(folder)) == "No call is under way. Rank 1 has left no record here."


def test_doctor_shows_paragraph_and_table(folder, capsys):
    assert cli.main(["doctor", "--flight", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No call is under way.")
    assert f"rank 1 of 2 ({os.uname().nodename}, pid {os.getpid()}): running" in out


def test_doctor_for_machines(folder, capsys):
    assert cli.main(["doctor", "--flight", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["size"], found["waits"], [r["rank"] for r in found["ranks"]]) == (2, [], [0, 1])


def test_doctor_without_records(tmp_path, capsys):
    assert cli.main(["doctor", "--flight", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "No rank has left a record here.\n"
    assert cli.main(["doctor", "--flight", str(tmp_path / "none")]) == 2
    assert "none cannot be read" in capsys.readouterr().err


def test_doctor_says_which_mpi_starts_ranks(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["mpi"]
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith(f"{found['version']}, started by {found['launcher']}\n")


def test_table_and_record_of_calls():
    found = flight(WAITS, [DONE, call("recv", 1, 990.0, -991.0, peers="rank 0")], size=2)
    lines = table(found, 1).splitlines()
    assert lines[0] == "rank 0 of 2 (far away, pid 1): running"
    words = "31 s ago all_reduce no. 17 world [0-3] float32 (1024,) under way /home/me/job.py:12"
    assert " ".join(lines[1].split()) == words
    assert "1000.000 ms, failed" in lines[3]
    assert record(found)["waits"][0]["call"]["verb"] == "all_reduce"
