import numpy as np
import pytest

from hpcdist.data import Windows


@pytest.mark.parametrize("length", range(6, 20))
def test_windows_tile_the_data(length):
    tokens = np.arange(length, dtype=np.uint8)
    windows = Windows(tokens, 5)
    x, y = windows.batch(np.arange(len(windows)))
    assert x.dtype == y.dtype == np.int64
    assert x.shape == (len(windows), 5)
    used = (length - 1) // 5 * 5
    np.testing.assert_array_equal(x.ravel(), tokens[:used])
    np.testing.assert_array_equal(y.ravel(), tokens[1 : used + 1])


def test_order_and_repeats_are_the_callers():
    x, _ = Windows(np.arange(100), 10).batch([3, 0, 3])
    assert x[:, 0].tolist() == [30, 0, 30]


def test_empty_batch():
    x, y = Windows(np.arange(100), 10).batch([])
    assert x.shape == y.shape == (0, 10)


def test_batch_is_a_copy():
    tokens = np.arange(11)
    x, _ = Windows(tokens, 5).batch([0])
    x[:] = 0
    assert tokens[4] == 4


def test_sequence_longer_than_the_data():
    with pytest.raises(ValueError, match=r"(?s)longer than the data.*got +5 tokens.*expected +at least 6.*do "):
        Windows(np.arange(5), 5)


def test_bad_sequence():
    with pytest.raises(ValueError, match="sequence length"):
        Windows(np.arange(5), 0)


@pytest.mark.parametrize("index", [-1, 9])
def test_no_such_sample(index):
    with pytest.raises(IndexError, match="0 to 8"):
        Windows(np.arange(99), 10).batch([0, index])
