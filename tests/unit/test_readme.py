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
BATCHES = TEXT[TEXT.index("## Sharing batches") : TEXT.index("## Older classes")]
OLDER = TEXT[TEXT.index("## Older classes") : TEXT.index("## Sharing a model")]
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


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_examples_of_sharing_batches_run_on_any_number_of_ranks(size):
    sharded, recomputed, _ = re.findall(r"```python\n(.*?)```", BATCHES, re.DOTALL)

    def main(comm):
        hd.manual_seed(0)
        tokens = np.arange(32).reshape(2, 16)
        names = {"hd": hd, "nn": nn, "optim": optim, "parallel": parallel, "comm": comm}
        names |= {"tokens": tokens, "targets": tokens + 1, "function": hd.exp, "x": hd.Tensor(np.ones(3), True)}
        exec(sharded, names)
        assert type(names["model"].blocks[0]).__name__ == "FSDPTransformerBlock"
        parallel.load_full_state_dict(names["model"], names["state"])
        before = names["model"](tokens, tokens + 1).item()
        exec(recomputed, names)
        loss = names["model"](tokens, tokens + 1)
        assert loss.item() == before < names["loss"].item()
        (loss + names["y"].sum()).backward()
        np.testing.assert_allclose(names["x"].grad, np.e)

    run(size, main)


def test_the_example_of_micro_batches_takes_the_same_step_on_any_number_of_ranks():
    *_, example = re.findall(r"```python\n(.*?)```", BATCHES, re.DOTALL)

    def main(comm, line):
        hd.manual_seed(0)
        model = nn.GPT(nn.GPTConfig(vocab_size=16, seq=8, num_layers=1, num_heads=2, width=16, dropout=0.5))
        draws = [np.random.default_rng(micro).integers(0, 16, (2, 9)) for micro in range(7)]
        names = {"hd": hd, "parallel": parallel, "comm": comm, "model": model, "step": 3}
        names["batches"] = [(drawn[:, :-1], drawn[:, 1:]) for drawn in draws]
        exec(example.replace("parallel.replicate(model, comm)", line), names)
        return parallel.clip_grad_norm_(model.parameters(), 1.0)

    lines = ("parallel.replicate(model, comm)", "parallel.fully_shard(model, mesh=comm)")
    for reproducible, close in ((False, 1e-5), (True, 0)):
        expected = run(1, main, lines[0], reproducible=reproducible)[0]
        for size, line in ((2, lines[0]), (3, lines[0]), (1, lines[1]), (2, lines[1]), (3, lines[1])):
            for found in run(size, main, line, reproducible=reproducible):
                assert found == pytest.approx(expected, rel=close, abs=0), (size, line)


def test_the_names_of_the_table_of_sharing_batches_are_there():
    rows = [row for row in re.findall(r"^\| (.*?) \| (.*) \|$", BATCHES, re.MULTILINE) if row[1].startswith("the same")]
    names = [name for left, _ in rows for name in re.findall(r"`(\w+)`", left)]
    known = {*parallel.__all__, *dir(parallel.FSDPModule), *dir(parallel.DistributedDataParallel)}
    assert len(names) > 20
    assert set(names) <= known


@pytest.mark.parametrize("size", [1, 2])
def test_the_example_of_a_hook_runs(size):
    (example,) = re.findall(r"```python\n(.*?)```", OLDER, re.DOTALL)

    def main(comm):
        names = {"nn": nn, "parallel": parallel, "comm": comm}
        exec(example, names)
        names["replica"].module(hd.Tensor(np.full((1, 8), comm.rank + 1.0, np.float32))).sum().backward()
        return names["replica"].module.bias.grad

    for gradient in run(size, main):
        np.testing.assert_array_equal(gradient, np.ones(8))


def test_the_names_of_the_older_classes_are_there():
    words = set(re.findall(r"`(?:parallel\.|optim\.)?(\w+)`|`(\w+)\(", OLDER))
    names = {name for pair in words for name in pair if name} - {"_wrapper", "elementwise"}
    known = {*parallel.__all__, *optim.__all__, *dir(parallel.FullyShardedDataParallel), *parallel.comm_hooks.__all__}
    assert len(names) > 20
    assert names - known <= {"load_state_dict", "state_dict"}


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
