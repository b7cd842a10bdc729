"""A cut vocabulary on threads, 1 to 4 ranks."""

import pytest
import vocabulary_suite as suite

from hpcdist.comm.local import run

SIZES = (1, 3, 4)
CHECKS = [
    "embedding", "embedding_refusals", "loss_rows", "loss_precision", "all_ignored", "loss_refusals",
    "linear_classes", "linear_rows", "linear_refusals", "memory",
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", CHECKS)
def test_one_axis(size, check):
    run(size, getattr(suite, f"check_{check}"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lead", [(5,), (2, 3)])
def test_loss_of_cut_classes(size, lead):
    run(size, suite.check_loss, lead)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("check", ["embedding_two_axes", "loss_two_axes", "linear_two_axes"])
def test_two_axes(size, check):
    run(size, getattr(suite, f"check_{check}"))
