"""Datasets made of others, against lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdist.data import ArrayDataset, ConcatDataset, DataLoader, Dataset, Subset, Windows, random_split


class Letters(Dataset):
    """Has no ``batch``."""

    def __init__(self, text):
        self.text = text

    def __len__(self):
        return len(self.text)

    def __getitem__(self, index):
        return self.text[index]


def test_a_dataset_says_what_a_sample_is():
    class Nothing(Dataset):
        pass

    with pytest.raises(TypeError, match="__getitem__"):
        Nothing()


class TestSubset:
    def test_samples_and_batches(self):
        part = Subset(ArrayDataset(x=np.arange(10) * 10), [7, 2, 2])
        assert [int(part[i]["x"]) for i in (0, 1, 2, -1)] == [70, 20, 20, 20]
        assert part.batch([1, 0])["x"].tolist() == [20, 70]
        assert len(part) == 3

    def test_of_single_samples(self):
        part = Subset(Letters("abcdef"), [5, 0, 3])
        assert list(DataLoader(part, 2)) == [["f", "a"], ["d"]]
        assert list(DataLoader(part, 2, collate_fn="".join)) == ["fa", "d"]

    def test_of_a_subset(self):
        assert Subset(Subset(Letters("abcdef"), [5, 4, 3]), [2, 0]).batch([0, 1]) == ["d", "f"]

    def test_bad(self):
        with pytest.raises(IndexError, match=r"Subset: sample\n  got +0 to 6"):
            Subset(Letters("abcdef"), [0, 6])
        with pytest.raises(IndexError, match="0 to 1"):
            Subset(Letters("abcdef"), [0, 3])[2]
        with pytest.raises(TypeError, match="integers, 1-D"):
            Subset(Letters("abcdef"), [0.5])
        assert len(Subset(Letters("abc"), [])) == 0


class TestConcat:
    @given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5), data=st.data())
    def test_is_a_list(self, sizes, data):
        starts = np.cumsum([0, *sizes])
        parts = [ArrayDataset(np.arange(n) + start) for n, start in zip(sizes, starts[:-1], strict=True)]
        whole, count = ConcatDataset(parts), sum(sizes)
        assert len(whole) == count
        assert [int(whole[i][0]) for i in range(-count, count)] == [*range(count), *range(count)]
        chosen = data.draw(st.lists(st.integers(0, count - 1), max_size=6)) if count else []
        assert whole.batch(chosen)[0].tolist() == chosen
        assert whole.batch(chosen)[0].dtype == np.int64

    def test_of_windows_and_single_samples(self):
        windows = ConcatDataset([Windows(np.arange(7), 3), Windows(np.arange(10, 14), 3)])
        inputs, targets = windows.batch([2, 0])
        assert inputs.tolist() == [[10, 11, 12], [0, 1, 2]]
        assert targets.tolist() == [[11, 12, 13], [1, 2, 3]]
        assert list(DataLoader(ConcatDataset(["ab", "cd"]), 3)) == [["a", "b", "c"], ["d"]]

    def test_bad(self):
        with pytest.raises(ValueError, match="at least one"):
            ConcatDataset([])
        with pytest.raises(IndexError, match="0 to 2"):
            ConcatDataset(["a", "bc"])[3]
        with pytest.raises(IndexError, match="0 to 2"):
            ConcatDataset(["a", "bc"]).batch([-1])


class TestSplit:
    @given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4), seed=st.integers(0, 3))
    def test_by_number(self, sizes, seed):
        parts = random_split("x" * sum(sizes), sizes, seed=seed)
        assert [len(part) for part in parts] == sizes
        assert sorted(np.concatenate([part.indices for part in parts])) == list(range(sum(sizes)))

    def test_by_share_rounds_down_and_gives_the_rest_to_the_first(self):
        assert [len(part) for part in random_split("x" * 10, [0.33, 0.33, 0.34])] == [4, 3, 3]
        assert [len(part) for part in random_split("x" * 11, [0.5, 0.25, 0.25])] == [6, 3, 2]

    def test_depends_on_the_seed(self):
        first = [random_split("x" * 30, [15, 15], seed=seed)[0].indices.tolist() for seed in (1, 1, 2)]
        assert first[0] == first[1] != first[2]

    @pytest.mark.parametrize("lengths", [[3, 3], [-1, 8], [0.5, 0.6], [1.5, -0.5], []], ids=str)
    def test_bad(self, lengths):
        with pytest.raises(ValueError, match="random_split"):
            random_split("x" * 7, lengths)
