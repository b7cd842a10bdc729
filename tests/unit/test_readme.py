"""The README names what there is: every variable, every command, every name that it writes as code."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import hpcdist as hd
import hpcdist.comm
from hpcdist import dtensor, nn, optim, parallel
from hpcdist.cli import VERBS
from hpcdist.comm.local import run
from hpcdist.config import Environment

TEXT = (Path(__file__).parents[2] / "README.md").read_text()
SHARING = TEXT[TEXT.index("## Sharing a model") : TEXT.index("## What a distributed tensor refuses")]


def test_every_variable_is_in_the_table():
    variables = {f"HPCDIST_{field.name.upper()}" for field in dataclasses.fields(Environment)}
    assert variables <= set(re.findall(r"^\| `(HPCDIST_\w+)", TEXT, re.MULTILINE))


def test_every_command_is_in_the_table():
    assert set(VERBS) <= set(re.findall(r"^\| `hpcdist (\w+)", TEXT, re.MULTILINE))


def test_the_functions_it_shows_are_there():
    shown = set(re.findall(r"\bdist\.(\w+)", TEXT))
    assert len(shown) > 5
    assert shown <= set(hpcdist.comm.__all__)


def test_the_example_for_users_of_torch_runs():
    blocks = [block for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "hpcdist.comm as dist" in block]
    assert len(blocks) == 1
    exec(blocks[0], {})
    assert not hpcdist.comm.is_initialized()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_examples_of_sharing_run_on_any_number_of_ranks(size, capsys):
    blocks = re.findall(r"```python\n(.*?)```", SHARING, re.DOTALL)
    assert len(blocks) == 2

    def main(comm):
        names = {"hd": hd, "nn": nn, "optim": optim, "parallel": parallel, "comm": comm}
        exec(blocks[0], names)
        assert names["total"].shape == ()
        np.testing.assert_allclose(names["whole"].data.sum(), names["number"], rtol=1e-4)
        assert names["rows"].placements == (dtensor.Shard(0),)
        names |= {"x": np.ones((32, 64), np.float32), "targets": np.arange(32) % 8}
        exec(blocks[1], names)
        assert names["state"]["0.weight"].shape == (256, 64)

    run(size, main)
    shown = re.search(r"```\n(Sequential on 2 ranks.*?)```", SHARING, re.DOTALL)
    assert (shown[1].rstrip() in capsys.readouterr().out) is (size == 2)


def test_the_names_of_the_table_of_sharing_are_there():
    left, right = zip(*re.findall(r"^\| (.*?) \| (.*) \|$", SHARING, re.MULTILINE), strict=True)
    known = {*dtensor.__all__, *parallel.__all__, *dir(dtensor.DTensor)}
    same = [name for a, b in zip(left, right, strict=True) if b.startswith("the same") for name in _names(a)]
    assert len(same) > 15
    assert {*same, *(name for b in right for name in _names(b))} - known <= {"CommDebugMode", "ValueError"}


def _names(text):
    """Return the names in code that begin no keyword argument and have no dots but those of packages of ours."""
    found = re.findall(r"`(?:parallel\.)?(\w+)(?:\(\))?`", text)
    return [name for name in found if name not in ("state_dict",)]
