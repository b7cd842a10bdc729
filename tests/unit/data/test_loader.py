import threading
import time
import traceback

import numpy as np
import pytest

from hpcdist.data import DataLoader


class Squares:
    """Counts its calls; fails at sample 13; sleeps at sample 99."""

    def __init__(self):
        self.calls = 0

    def batch(self, indices):
        self.calls += 1
        if 13 in indices:
            raise KeyError("marker-13")
        if 99 in indices:
            time.sleep(1)
        return np.square(indices)


def batches(n, size=2):
    return [np.arange(i * size, (i + 1) * size) for i in range(n)]


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name == "hpcdist-loader"]


@pytest.fixture(autouse=True)
def _no_thread_left():
    yield
    assert loader_threads() == []


@pytest.mark.parametrize("prefetch", [0, 1, 2, 50])
def test_all_batches_in_order(prefetch):
    loader = DataLoader(Squares(), batches(6), prefetch=prefetch)
    for _ in range(2):
        assert np.concatenate(list(loader)).tolist() == [i * i for i in range(12)]
    assert len(loader) == 6


def test_no_batches():
    assert list(DataLoader(Squares(), [])) == []


def test_fetches_ahead_but_not_further_than_asked():
    data = Squares()
    samples = iter(DataLoader(data, batches(6), prefetch=3))
    next(samples)
    deadline = time.monotonic() + 5
    while data.calls < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert data.calls == 3
    samples.close()


def test_it_works_while_the_loop_works():
    """Five fetches of 50 ms beside five steps of 50 ms take less than their sum."""

    class Slow:
        def batch(self, indices):
            time.sleep(0.05)
            return indices

    start = time.monotonic()
    for _ in DataLoader(Slow(), batches(5)):
        time.sleep(0.05)
    assert time.monotonic() - start < 0.45


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_arrives_at_its_batch_with_its_traceback(prefetch):
    seen = []
    loader = DataLoader(Squares(), batches(9), prefetch=prefetch)
    with pytest.raises(KeyError, match="marker-13") as caught:
        seen.extend(batch[0] for batch in loader)
    assert seen == [0, 4, 16, 36, 64, 100]
    assert "in batch" in "".join(traceback.format_exception(caught.value))


def test_an_error_in_the_list_of_batches():
    def broken():
        yield np.arange(2)
        raise RuntimeError("marker-list")

    with pytest.raises(RuntimeError, match="marker-list"):
        list(DataLoader(Squares(), broken()))


def test_leaving_the_loop_ends_the_thread():
    for _ in DataLoader(Squares(), batches(100)):
        assert loader_threads()
        break
    assert loader_threads() == []


def test_an_error_in_the_loop_ends_the_thread():
    def loop():
        for _ in DataLoader(Squares(), batches(100)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert loader_threads() == []


def test_state_counts_what_was_delivered_not_what_was_fetched():
    data = Squares()
    loader = DataLoader(data, batches(6), prefetch=4)
    samples = iter(loader)
    head = [next(samples), next(samples)]
    assert loader.state_dict() == {"delivered": 2}
    samples.close()

    again = Squares()
    resumed = DataLoader(again, batches(6))
    resumed.load_state_dict(loader.state_dict())
    tail = list(resumed)
    assert np.concatenate(head + tail).tolist() == [i * i for i in range(12)]
    assert again.calls == 4
    assert len(list(resumed)) == 6


def test_a_wait_has_a_limit():
    with pytest.raises(TimeoutError, match="no batch"):
        list(DataLoader(Squares(), [np.array([99])], timeout_s=0.05))
    for thread in loader_threads():
        thread.join()


def test_one_iteration_at_a_time():
    loader = DataLoader(range(8), 2)
    with pytest.raises(RuntimeError, match="twice at the same time"):
        list(zip(loader, loader, strict=True))
    assert len(list(loader)) == 3  # one was taken
    first = iter(loader)
    next(first)
    with pytest.raises(RuntimeError, match="close the other iterator"):
        next(iter(loader))
    first.close()
    assert [batch.tolist() for batch in loader] == [[2, 3], [4, 5], [6, 7]]


def test_batch_size():
    assert [batch.tolist() for batch in DataLoader(range(3), np.int64(2))] == [[0, 1], [2]]
    for size in (None, 2.5, True):
        with pytest.raises(TypeError, match=f"batch_size\n  got +{size}"):
            DataLoader(range(3), size)
    with pytest.raises(TypeError, match=r"got +generator\n  expected a dataset with len"):
        DataLoader((i for i in range(3)), 2)


def test_bad_prefetch():
    with pytest.raises(ValueError, match="prefetch"):
        DataLoader(Squares(), [], prefetch=-1)


def test_no_length():
    with pytest.raises(TypeError, match="generator"):
        len(DataLoader(Squares(), (b for b in batches(2))))
