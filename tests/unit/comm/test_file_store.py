"""Stores in files: several processes, some of which are killed; chapters; and what is left behind."""

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.comm import FileStore
from hpcdist.comm.contents import Change, Contents, pack, unpack
from hpcdist.comm.journal import Journal
from hpcdist.errors import DistStoreError

WORKER = """
import sys
from hpcdist.comm import FileStore

store = FileStore(sys.argv[1], world_size=int(sys.argv[3]))
{body}
"""


def start(folder, body, argument="", world_size=-1):
    code = WORKER.format(body=body)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), argument, str(world_size)], stdout=subprocess.PIPE, text=True
    )


def outputs(children):
    try:
        return [child.communicate(timeout=30)[0] for child in children]
    finally:
        for child in children:
            child.kill()


def plus(journal, amount=1):
    return int(journal.make(Change("add", "n", (b"%d" % amount,))))


# ---- processes
def test_processes_count_and_meet(tmp_path):
    body = """
for _ in range(25):
    store.add("n", 1)
    store.append("text", sys.argv[2])
store.barrier("all", 3)
print(store.get("n").decode(), len(store.get("text")))
"""
    children = [start(tmp_path / "s", body, name) for name in "abc"]
    assert outputs(children) == ["75 75\n"] * 3
    assert sorted(FileStore(tmp_path / "s").get("text")) == sorted(b"abc" * 25)


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.02])
def test_killed_in_the_middle_of_a_change(tmp_path, delay_s):
    body = """
while True:
    print(store.add("n", 1), flush=True)
"""
    store, child = FileStore(tmp_path), start(tmp_path, body)
    store.wait(["n"], 20)
    time.sleep(delay_s)
    os.kill(child.pid, signal.SIGKILL)
    told = int(outputs([child])[0].splitlines()[-1])
    begin = time.monotonic()
    total = store.add("n", 0)
    assert total in (told, told + 1)  # all it was told of, and at most the one in the making
    assert store.add("n", 1) == total + 1
    assert time.monotonic() - begin < 1  # nobody waits for the dead
    assert FileStore(tmp_path).get("n") == b"%d" % (total + 1)


def test_stopped_in_the_middle_of_a_change(tmp_path):
    """One that stands still keeps nobody waiting, and goes on as if nothing had been."""
    body = """
for _ in range(200):
    store.add("n", 1)
"""
    store, child = FileStore(tmp_path), start(tmp_path, body)
    store.wait(["n"], 20)
    for _ in range(10):
        os.kill(child.pid, signal.SIGSTOP)
        assert store.add("m", 1)
        os.kill(child.pid, signal.SIGCONT)
        time.sleep(0.005)
    outputs([child])
    assert child.returncode == 0
    assert store.multi_get(["n", "m"]) == [b"200", b"10"]


def test_the_last_of_all_holders_removes_the_folder(tmp_path):
    body = """
store.set(sys.argv[2], "")
store.wait(["a", "b", "c"], 20)
if sys.argv[2] == "a":
    store.close()
"""
    children = [start(tmp_path / "s", body, name, 3) for name in "abc"]
    outputs(children)
    assert [child.returncode for child in children] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def test_holders_leave(tmp_path):
    first, second = FileStore(tmp_path / "s", 2), FileStore(tmp_path / "s", 2)
    first.set("k", "v")
    first.close()
    first.close()  # counts once
    assert (second.get("k"), second.list_keys()) == (b"v", ["k"])
    second.close()
    assert not (tmp_path / "s").exists()
    with pytest.raises(DistStoreError, match="the folder has been removed"):
        second.set("k", "v")
    with pytest.raises(DistStoreError, match="the folder has been removed"):
        second.check(["k"])


def test_files_hold_no_pickle_and_no_drafts(tmp_path):
    store = FileStore(tmp_path)
    store.set("key", b"value")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000000.0000", "00000000.base"]
    fields = unpack((tmp_path / "00000000.0000").read_bytes())
    assert fields[1:] == [b"set", b"key", b"value"]


def test_a_folder_without_hard_links(tmp_path, monkeypatch):
    def refuse(self, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    with pytest.raises(DistStoreError, match=r"(?s)cannot link.*Operation not permitted.*hard links"):
        FileStore(tmp_path)


# ---- chapters
def test_chapters_come_and_go(tmp_path):
    writer = Journal(tmp_path, changes=4, kept_s=-60)  # cleared away at once
    idle = Journal(tmp_path, changes=4, kept_s=-60)
    assert [plus(writer) for _ in range(42)] == list(range(1, 43))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in names if not name.endswith(".base")] == ["00000010.0000", "00000010.0001"]
    assert (tmp_path / "00000003.base").stat().st_size == 0
    assert plus(idle) == 43
    assert plus(Journal(tmp_path, changes=4, kept_s=-60)) == 44
    assert plus(writer) == 45


def test_processes_in_short_chapters(tmp_path):
    body = """
from pathlib import Path
from hpcdist.comm.contents import Change
from hpcdist.comm.journal import Journal

journal = Journal(Path(sys.argv[1]), changes=4, kept_s=5)
for _ in range(40):
    print(int(journal.make(Change("add", "n", (b"1",)))))
"""
    got = [int(word) for output in outputs([start(tmp_path, body) for _ in range(3)]) for word in output.split()]
    assert sorted(got) == list(range(1, 121))  # each number once: no change was lost, or made twice


def test_a_chapter_that_was_cleared_away_cannot_be_begun_again(tmp_path):
    """Not even by one who was at its edge all the time, and still finds the last change before it."""
    writer, idle = Journal(tmp_path, changes=4, kept_s=-60), Journal(tmp_path, changes=4, kept_s=-60)
    assert [plus(idle) for _ in range(3)] == [1, 2, 3]
    assert [plus(writer) for _ in range(21)] == list(range(4, 25))
    last = tmp_path / "00000000.0003"
    assert not last.exists()
    last.write_bytes(pack([b"mark", b"add", b"n", b"1"]))
    assert (plus(idle), plus(writer)) == (25, 26)
    assert (tmp_path / "00000001.base").stat().st_size == 0


def test_chapters_are_kept_a_while(tmp_path):
    writer, idle = Journal(tmp_path, changes=4), Journal(tmp_path, changes=4)
    for _ in range(20):
        plus(writer)
    assert len(list(tmp_path.glob("*.0*"))) == 20
    idle.catch_up()
    assert idle.contents.values == {"n": b"20"}


def test_who_dies_at_the_end_of_a_chapter(tmp_path, monkeypatch):
    dying = Journal(tmp_path, changes=3)
    monkeypatch.setattr(dying, "_turn", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        [plus(dying) for _ in range(3)]
    assert not (tmp_path / "00000001.base").exists()
    assert plus(Journal(tmp_path, changes=3)) == 4
    assert (tmp_path / "00000001.base").exists()


def test_who_stands_still_for_too_long_is_told(tmp_path, monkeypatch):
    """Its change would go into a chapter that was cleared away: it must not be taken for made, nor be made."""
    slow, others = Journal(tmp_path, changes=4, kept_s=-60), Journal(tmp_path, changes=4, kept_s=-60)
    assert plus(others) == 1
    link = slow._link

    def late(draft, page):
        data = draft.read_bytes()
        for _ in range(14):
            plus(others)
        draft.write_bytes(data)  # as if it had not been cleared away yet
        return link(draft, page)

    monkeypatch.setattr(slow, "_link", late)
    with pytest.raises(DistStoreError, match="nobody can tell whether a change was made"):
        plus(slow, 100)
    monkeypatch.undo()
    assert (plus(others), plus(slow), plus(others)) == (16, 17, 18)


def test_who_stands_still_before_its_draft_is_linked_is_told(tmp_path, monkeypatch):
    slow = Journal(tmp_path)
    link = slow._link
    monkeypatch.setattr(slow, "_link", lambda draft, page: draft.unlink() or link(draft, page))
    with pytest.raises(DistStoreError, match="nobody can tell whether a change was made"):
        plus(slow)
    assert plus(Journal(tmp_path)) == 1


def test_an_answer_that_is_lost_on_the_way(tmp_path, monkeypatch):
    """NFS may say that a link exists already because it has just made it."""
    journal = Journal(tmp_path)
    link = journal._link
    monkeypatch.setattr(journal, "_link", lambda draft, page: link(draft, page) and False)
    assert [plus(journal) for _ in range(3)] == [1, 2, 3]


def test_left_drafts_are_cleared_away(tmp_path):
    (tmp_path / "dead.draft").write_bytes(b"")
    os.utime(tmp_path / "dead.draft", (1, 1))
    (tmp_path / "alive.draft").write_bytes(b"")
    journal = Journal(tmp_path, changes=2)
    plus(journal)
    plus(journal)
    assert [path.name for path in tmp_path.glob("*.draft")] == ["alive.draft"]


# ---- what is in files
@given(st.lists(st.binary(max_size=20)))
def test_fields_come_back(fields):
    assert unpack(pack(fields)) == fields


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["set", "append", "push", "pop", "delete"]), st.sampled_from("ab"))))
def test_contents_come_back_from_their_changes(steps):
    contents, twin = Contents(), Contents()
    for number, (verb, key) in enumerate(steps):
        contents.apply(Change(verb, key, () if verb in ("pop", "delete") else (b"%d" % number,)))
    for change in contents.changes():
        twin.apply(change)
    assert (twin.values, twin.queues) == (contents.values, contents.queues)
