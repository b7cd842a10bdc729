"""The README names what there is: every variable, every command, every name that it writes as code."""

import dataclasses
import re
from pathlib import Path

import hpcdist.comm
from hpcdist.cli import VERBS
from hpcdist.config import Environment

TEXT = (Path(__file__).parents[2] / "README.md").read_text()


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
