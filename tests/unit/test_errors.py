"""Errors and the form of their messages."""

import pytest

from hpcdist import errors


def test_a_message_says_what_got_expected_do():
    text = errors.explain("thing: size", got=3, expected="4", do="make it larger")
    assert text == "thing: size\n  got      3\n  expected 4\n  do       make it larger"
    assert errors.explain("thing") == "thing"
    assert errors.explain("thing", got=0) == "thing\n  got      0"


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (errors.DistError, RuntimeError),
        (errors.DistTimeoutError, TimeoutError),
        (errors.DistTimeoutError, errors.DistError),
        (errors.CollectiveMismatchError, errors.DistError),
        (errors.CheckpointError, errors.HpcdistError),
        (errors.LaunchError, errors.HpcdistError),
    ],
)
def test_classes_can_be_caught_as_what_they_are(kind, also):
    assert issubclass(kind, also)
    assert issubclass(kind, errors.HpcdistError)
