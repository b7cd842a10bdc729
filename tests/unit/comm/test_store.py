"""Stores: one body for all kinds, beside a model made of dicts, and threads."""

import threading
import time
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.comm import FileStore, HashStore, PrefixStore, Store
from hpcdist.errors import DistError, DistStoreError, QueueEmptyError

KINDS = {
    "hash": lambda folder: HashStore(),
    "file": lambda folder: FileStore(folder / "store"),
    "prefix of hash": lambda folder: PrefixStore("part", HashStore()),
    "prefix of file": lambda folder: PrefixStore("part", FileStore(folder / "store")),
    "prefix of prefix": lambda folder: PrefixStore("a", PrefixStore("b", HashStore())),
}


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    made = KINDS[request.param](tmp_path)
    made.set_timeout(5)
    return made


def together(*calls):
    """Call all at once, each in a thread; return their results."""
    results = [None] * len(calls)

    def run(place):
        try:
            results[place] = calls[place]()
        except Exception as e:
            results[place] = e

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_values(store):
    store.set("a", b"\0\xff")
    store.set("b", "text")
    assert (store.get("a"), store.get("b")) == (b"\0\xff", b"text")
    store.set("a", b"")
    assert store.get("a") == b""
    assert store.multi_get(["b", "a"]) == [b"text", b""]
    assert store.multi_get([]) == []
    store.multi_set(["c", "d"], ["1", b"2"])
    assert store.multi_get(["d", "c"]) == [b"2", b"1"]
    store.append("c", "3")
    store.append("new", b"4")
    assert (store.get("c"), store.get("new")) == (b"13", b"4")
    assert store.list_keys() == ["a", "b", "c", "d", "new"]
    assert store.num_keys() == 5
    assert (store.delete_key("a"), store.delete_key("a"), store.check(["a"])) == (True, False, False)
    assert store.check(["b", "c"])
    assert not store.check(["b", "zz"])


def test_numbers(store):
    assert [store.add("n", 3), store.add("n", -5), store.add("n", 10**20)] == [3, -2, 10**20 - 2]
    assert store.get("n") == str(10**20 - 2).encode()
    store.set("text", "many")
    with pytest.raises(ValueError, match=r"add: value of key '.*text'\n  got      b'many'"):
        store.add("text", 1)
    assert store.get("text") == b"many"
    with pytest.raises(TypeError):
        store.add("n", 1.5)


def test_compare_set(store):
    assert store.compare_set("k", "other", "x") == b"other"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "x") == b"x"
    assert store.compare_set("k", "", "y") == b"x"
    assert store.compare_set("k", b"x", b"y") == b"y"
    assert store.get("k") == b"y"


def test_queues(store):
    store.queue_push("q", "1")
    store.queue_push("q", b"2")
    assert (store.queue_len("q"), store.check(["q"]), store.list_keys()) == (2, True, ["q"])
    assert (store.queue_pop("q"), store.queue_pop("q", block=False)) == (b"1", b"2")
    assert (store.queue_len("q"), store.check(["q"])) == (0, False)
    with pytest.raises(QueueEmptyError, match=r"queue 'q' is empty$"):
        store.queue_pop("q", block=False)
    store.set_timeout(timedelta(milliseconds=20))
    with pytest.raises(QueueEmptyError, match=r"queue 'q' is empty for 0\.02 s"):
        store.queue_pop("q")
    store.queue_push("q", "3")
    assert store.delete_key("q")
    assert store.queue_len("q") == 0


def test_what_is_not_there_is_named_at_the_limit(store):
    store.set("here", "")
    start = time.monotonic()
    with pytest.raises(DistStoreError, match=r"(?s)not set within 0\.05 s.*nothing for 'gone', 'lost'\n") as caught:
        store.wait(["gone", "here", "lost"], timedelta(milliseconds=50))
    assert 0.05 <= time.monotonic() - start < 1
    assert isinstance(caught.value, DistError)
    store.set_timeout(0.03)
    assert store.timeout == timedelta(seconds=0.03)
    with pytest.raises(DistStoreError, match="nothing for 'gone'"):
        store.get("gone")
    store.queue_push("queue", "1")
    with pytest.raises(DistStoreError, match="nothing for 'queue'"):
        store.get("queue")


def test_waits_end_when_something_comes(store):
    def later():
        time.sleep(0.1)
        store.set("x", "1")
        store.queue_push("q", "2")
        store.set("y", "3")

    got = together(lambda: store.get("x"), lambda: store.queue_pop("q"), lambda: store.wait(["x", "y"]), later)
    assert got == [b"1", b"2", None, None]


def test_clones_share_all_but_the_limit(store):
    twin = store.clone()
    assert twin.timeout == store.timeout
    twin.set_timeout(0.01)
    twin.set("k", "v")
    assert store.get("k") == b"v"
    assert store.timeout == timedelta(seconds=5)
    assert type(twin) is type(store)
    assert repr(twin) == repr(store)


def test_changes_are_whole(store):
    def work():
        for _ in range(10):
            store.add("n", 1)
            store.append("text", "x")
            store.queue_push("q", "1")
        return [int(store.queue_pop("q")) for _ in range(10)]

    assert together(*[work] * 4) == [[1] * 10] * 4
    assert (store.get("n"), store.get("text"), store.queue_len("q")) == (b"40", b"x" * 40, 0)


def test_only_one_wins(store):
    got = together(*[lambda value=value: store.compare_set("k", "", str(value)) for value in range(5)])
    assert set(got) == {store.get("k")}


def test_barrier(store):
    came = []

    def meet(place):
        for turn in range(3):
            came.append(turn)
            store.barrier("all", 3)
            assert came.count(turn) == 3, place
        return "done"

    assert together(*[lambda place=place: meet(place) for place in range(3)]) == ["done"] * 3
    with pytest.raises(DistStoreError, match=r"(?s)barrier 'few' not complete within 0.05 s.*got      1 callers.* 2"):
        store.barrier("few", 2, timeout=0.05)
    with pytest.raises(ValueError, match="world_size"):
        store.barrier("none", 0)


@pytest.mark.parametrize(
    "call", [lambda s: s.set("k", 5), lambda s: s.append("k", None), lambda s: s.queue_push("q", 1)]
)
def test_other_kinds_of_values_are_refused(store, call):
    with pytest.raises(TypeError, match="expected bytes or str"):
        call(store)
    assert store.num_keys() == 0


def test_arguments_that_make_no_sense(store):
    with pytest.raises(ValueError, match="one a key"):
        store.multi_set(["a"], [])
    with pytest.raises(ValueError, match="above 0"):
        store.set_timeout(-1)


def test_parts_do_not_see_each_other():
    whole = HashStore()
    left, right = PrefixStore("left", whole), PrefixStore("right", whole)
    left.set("k", "1")
    right.set("k", "2")
    right.queue_push("q", "3")
    whole.set("left", "4")
    assert (left.get("k"), right.get("k")) == (b"1", b"2")
    assert (left.list_keys(), right.list_keys()) == (["k"], ["k", "q"])
    assert whole.list_keys() == ["left", "left/k", "right/k", "right/q"]
    assert left.underlying_store is whole
    assert isinstance(left, Store)


# ---- beside a model
KEYS, VALUES = st.sampled_from(["a", "b", "c"]), st.sampled_from([b"", b"1", b"-7", b"xy"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, VALUES),
        st.tuples(st.just("append"), KEYS, VALUES),
        st.tuples(st.just("add"), KEYS, st.integers(-5, 5)),
        st.tuples(st.just("compare_set"), KEYS, VALUES, VALUES),
        st.tuples(st.just("delete_key"), KEYS),
        st.tuples(st.just("queue_push"), KEYS, VALUES),
        st.tuples(st.just("queue_pop"), KEYS),
    ),
    max_size=12,
)


class Model:
    """What stores do, said once more with plain dicts."""

    def __init__(self):
        self.values, self.queues = {}, {}

    def set(self, key, value):
        self.values[key] = value

    def append(self, key, value):
        self.values[key] = self.values.get(key, b"") + value

    def add(self, key, amount):
        total = int(self.values.get(key, 0)) + amount
        self.values[key] = b"%d" % total
        return total

    def compare_set(self, key, expected, desired):
        if key not in self.values and expected != b"":
            return expected
        if self.values.get(key, b"") == expected:
            self.values[key] = desired
        return self.values[key]

    def delete_key(self, key):
        return len([d.pop(key) for d in (self.values, self.queues) if d.get(key) is not None and d[key] != []]) > 0

    def queue_push(self, key, value):
        self.queues.setdefault(key, []).append(value)

    def queue_pop(self, key, block=False):
        if not self.queues.get(key):
            raise QueueEmptyError
        return self.queues[key].pop(0)


def outcome(thing, name, *arguments):
    try:
        if name == "queue_pop":
            return thing.queue_pop(*arguments, block=False)
        return getattr(thing, name)(*arguments)
    except (ValueError, QueueEmptyError) as e:
        return type(e)


@pytest.mark.parametrize("kind", ["hash", "prefix of hash", "file"])
@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_the_same_as_a_model(tmp_path_factory, kind, steps):
    store, model = KINDS[kind](tmp_path_factory.mktemp("store")), Model()
    for name, *arguments in steps:
        assert outcome(store, name, *arguments) == outcome(model, name, *arguments), (name, arguments)
    queues = {key: queue for key, queue in model.queues.items() if queue}
    keys = sorted({*model.values, *queues})
    assert store.list_keys() == keys
    assert {key: store.queue_len(key) for key in keys} == {key: len(queues.get(key, [])) for key in keys}
    assert store.multi_get(sorted(model.values)) == [model.values[key] for key in sorted(model.values)]
