"""Flags from the fields of a dataclass, read on every rank, told by one."""

from dataclasses import dataclass

import pytest

from hpcdist.comm import local
from hpcdist.train import option, parse_options


@dataclass(frozen=True, kw_only=True)
class Options:
    data: str | None = option(None, "a file")
    micro_batch: int = option(4, "sequences")
    lr: float = option(0.5, "100% a rate")
    name: str = option("x", "a name")
    resume: bool = option(False, "go on")


def parsed(*words, num_ranks=2):
    return local.run(num_ranks, lambda comm: parse_options(Options, comm, words, description="A trial."))


def test_defaults_are_those_of_the_dataclass():
    assert parsed() == [Options()] * 2
    assert Options() == Options(data=None, micro_batch=4, lr=0.5, name="x", resume=False)


def test_every_kind_of_flag():
    words = ["--data", "d.txt", "--micro-batch", "7", "--lr", "1e-3", "--name", "y", "--resume"]
    assert parsed(*words) == [Options(data="d.txt", micro_batch=7, lr=1e-3, name="y", resume=True)] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--micro", "3"), "unrecognized arguments: --micro 3"),  # abbreviations break when a flag is added
        (("--micro-batch", "3.5"), "--micro-batch: invalid int value: '3.5'"),
        (("--lr",), "--lr: expected one argument"),
        (("stray",), "unrecognized arguments: stray"),
    ],
)
def test_bad_words_are_one_error_and_nothing_is_printed(words, message, capsys):
    with pytest.raises(ValueError, match="command line") as caught:
        parsed(*words)
    assert message in str(caught.value)
    assert "--help" in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_help_is_printed_once(capsys):
    with pytest.raises(SystemExit) as caught:
        parsed("--help", num_ranks=1)
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert "A trial." in said
    for line in (
        "--data PATH",
        "--micro-batch N",
        "--lr X",
        "--name NAME",
        "--resume ",
        "(default: 0.5)",
        "100% a rate",
    ):
        assert line in said
    assert "None" not in said
