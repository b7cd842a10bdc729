"""NumPy's BLAS: found, callable, and its threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hpcdist.backends import blas


def test_product_by_address():
    found = blas.interface()
    if found is None:
        pytest.skip("NumPy's BLAS has no C interface here")
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
    out = np.full((2, 4), np.nan, np.float32)
    found.sgemm(101, 111, 111, 2, 4, 3, 2.0, a.ctypes.data, 3, b.ctypes.data, 4, 0.0, out.ctypes.data, 4)
    np.testing.assert_array_equal(out, 2 * a @ b)


def test_integer_limit():
    found = blas.Interface(print, print, 32, "cblas_sgemm")
    assert found.int_limit == 2**31 - 1


@pytest.fixture
def threads():
    before = blas.num_threads()
    yield before
    blas.set_num_threads(before)


def test_threads_agree_with_threadpoolctl(threads):
    info = pytest.importorskip("threadpoolctl").threadpool_info
    for n in (1, 2):
        blas.set_num_threads(n)
        assert blas.num_threads() == n
        assert n in [entry["num_threads"] for entry in info() if entry["user_api"] == "blas"]


def test_single_threaded_restores_when_the_last_leaves(threads):
    blas.set_num_threads(2)
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def other():
        with blas.single_threaded():
            entered.set()
            leave.wait(10)
        left.set()

    worker = threading.Thread(target=other)
    with blas.single_threaded():
        worker.start()
        assert entered.wait(10)
        assert blas.num_threads() == 1
    assert blas.num_threads() == 1  # the other is still inside
    assert blas.usual_threads() == 2
    leave.set()
    assert left.wait(10)
    worker.join()
    assert blas.num_threads() == 2


def test_single_threaded_restores_after_an_error(threads):
    blas.set_num_threads(2)
    with pytest.raises(KeyError), blas.single_threaded():
        raise KeyError
    assert blas.num_threads() == 2


def test_describe():
    found = blas.describe()
    assert set(found) == {"symbol", "int_bits", "num_threads", "config"}
    assert found["num_threads"] == blas.num_threads()


def test_nothing_found(monkeypatch):
    monkeypatch.setattr(blas, "_library", lambda: None)
    for cached in (blas.interface, blas._thread_functions):
        cached.cache_clear()
    try:
        assert blas.interface() is None
        assert blas.num_threads() == 1
        blas.set_num_threads(4)
        assert blas.describe() == {"symbol": None, "int_bits": None, "num_threads": 1, "config": None}
    finally:
        for cached in (blas.interface, blas._thread_functions):
            cached.cache_clear()


def test_threads_that_ask_at_the_same_time_are_told_the_same():
    def ask(_):
        return {blas.describe()["config"] for _ in range(20000)}

    with ThreadPoolExecutor(4) as threads:
        told = set.union(*threads.map(ask, range(4)))
    assert len(told) == 1
