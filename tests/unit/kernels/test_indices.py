"""Indices out of range are refused before a loop reads with them, by both forms."""

import numpy as np
import pytest

from hpcdist.backends import flags
from hpcdist.kernels.embedding import embedding_grad
from hpcdist.kernels.indices import check_indices
from hpcdist.kernels.loss import cross_entropy, cross_entropy_grad


@pytest.mark.parametrize("off", [(), ("*",)], ids=["compiled", "generic"])
@pytest.mark.parametrize("bad", [-1, 5, 2**40])
def test_kernels_refuse(off, bad):
    indices, rows = np.array([0, bad, 4]), np.ones((3, 5), np.float32)
    with flags.kernels(off=off):
        with pytest.raises(ValueError, match=f"targets are out of range\n.*{bad}\n.*0 to 4, or -100"):
            cross_entropy(rows, indices, -100)
        with pytest.raises(ValueError, match="targets are out of range"):
            cross_entropy_grad(rows, indices, -100, 1.0)
        with pytest.raises(ValueError, match=f"tokens are out of range\n.*{bad}\n.*0 to 4$"):
            embedding_grad(rows, indices, np.ones((5, 5), np.float32))
    assert (rows == 1).all()


def test_ignored_and_empty_are_fine():
    check_indices("i", np.array([7, 0, -100]), 8, -100)
    check_indices("i", np.zeros(0, int), 0)
    check_indices("i", np.array([255], np.uint8), 256)


@pytest.mark.parametrize("off", [(), ("*",)], ids=["compiled", "generic"])
def test_all_ignored(off):
    rows = np.ones((2, 3), np.float32)
    with flags.kernels(off=off):
        assert cross_entropy_grad(rows, np.array([-100, -100]), -100, 1.0) == 0
    assert (rows == 0).all()
