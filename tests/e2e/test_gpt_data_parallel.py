"""The main job, its parameters whole, shared out, or both: losses and files of one rank, to the bit where asked for."""

import re
import shutil

import gpt_job
import numpy as np
import pytest
from gpt_job import metrics, run

from hpcdist import checkpoint

STEPS = 6
SMALL = (
    *("--steps", str(STEPS), "--seq", "32", "--layers", "2", "--width", "36", "--heads", "2", "--norm", "rms"),
    *("--mlp", "swiglu", "--dropout", "0.1", "--global-batch", "14", "--micro-batch", "2"),
    *("--save-every", "1", "--val-every", "3", "--sample-tokens", "9"),
)
"""7 micro-batches, which neither 2 nor 3 nor 4 ranks share evenly."""
REPLICA_SHARD, DP_TP = ("--mesh", "replica=2,shard=2"), ("--mesh", "dp=2,tp=2")
RUNS = {
    "one": ("python", ()),
    "ddp 2": ("launch 2", ("--strategy", "ddp")),
    "fsdp 1": ("python", ("--strategy", "fsdp")),
    "fsdp 3": ("launch 3", ("--strategy", "fsdp")),
    "hsdp 4": ("launch 4", ("--strategy", "hsdp", *REPLICA_SHARD)),
    "fsdp 2 tp 2": ("launch 4", ("--strategy", "fsdp", *DP_TP)),
    "ddp 2 tp 2": ("launch 4", ("--strategy", "ddp", *DP_TP)),
}
BITS = ("ddp 2", "fsdp 3", "hsdp 4")


def start(folder, text, kind, *more):
    way, options = RUNS[kind]
    return run(folder, way, *SMALL, "--data", str(text), "--out", "out", *options, *more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text):
    """Return a function that trains in a way, once; what it said, and its folder."""
    done = {}

    def get(kind, *more):
        if (kind, more) not in done:
            folder = tmp_path_factory.mktemp("run")
            done[kind, more] = start(folder, text, kind, *more), folder / "out"
        said, out = done[kind, more]
        assert said.code == 0, said.said
        return said, out

    return get


def numbers(out):
    """Return losses and validation losses of all steps, as they were written."""
    records = metrics(out)
    assert [r["step"] for r in records] == list(range(1, STEPS + 1))
    assert ["val_loss" in r for r in records] == [False, False, True] * 2
    return [r["loss"] for r in records], [r["val_loss"] for r in records if "val_loss" in r]


def bits(out):
    """Return the bytes of weights and of the optimizer's state at the end, by name."""
    state = checkpoint.load(out)
    assert state["train/step"] == STEPS
    arrays = {name: np.asarray(value) for name, value in state.items()}
    return {name: (a.dtype.str, a.shape, a.tobytes()) for name, a in arrays.items() if a.dtype.kind == "f"}


# ---------------------------------------------------------------- to the last digits
@pytest.mark.parametrize("kind", [kind for kind in RUNS if kind != "one"])
def test_losses_and_checkpoints_are_those_of_one_rank(trained, kind):
    (_, out), (_, reference) = trained(kind), trained("one")
    for mine, theirs in zip(numbers(out), numbers(reference), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
    mine, theirs = (gpt_job.weights_of(where, STEPS) for where in (out, reference))
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(mine[name], value, rtol=0, atol=2e-3, err_msg=name, strict=True)


def test_it_learns(trained):
    training, validation = numbers(trained("one")[1])
    assert training[-1] < training[0] - 0.5
    assert validation[1] < validation[0]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("fsdp 3", "mesh dp=3, strategy fsdp,"),
        ("hsdp 4", "mesh replica=2, shard=2, strategy hsdp,"),
        ("fsdp 2 tp 2", "mesh dp=2, tp=2, strategy fsdp,"),
    ],
)
def test_it_says_on_which_mesh(trained, kind, told):
    assert told in trained(kind)[0].out
    size = sum(w.size for w in gpt_job.weights_of(trained("one")[1], STEPS).values())
    assert f"{size:,} parameters" in trained(kind)[0].out


# ---------------------------------------------------------------- to the last bit
@pytest.mark.parametrize("kind", BITS)
def test_reproducible_runs_have_the_bits_of_one_rank(trained, kind):
    (said, out), (alone, reference) = trained(kind, "--reproducible"), trained("one", "--reproducible")
    assert numbers(out) == numbers(reference)
    assert bits(out) == bits(reference)
    sample = re.compile(r"--- sample\n.*?\n---", re.DOTALL)
    assert sample.findall(said.out) == sample.findall(alone.out) != []
    assert ", reproducible, threads a rank 1" in said.out


def test_other_runs_have_other_bits(trained):
    """Else the tests above would show nothing; and both ways compute the same."""
    (_, fast), (_, reference) = trained("ddp 2"), trained("one", "--reproducible")
    assert bits(fast) != bits(reference)
    np.testing.assert_allclose(numbers(fast)[0], numbers(reference)[0], rtol=0, atol=1e-5)


def test_a_reproducible_run_goes_on_with_other_ranks_and_strategies(trained, text, tmp_path):
    """Steps 1 and 2 by ddp on 2 ranks, step 3 by fsdp on 3, step 4 by one rank, the rest on copies of shards."""
    shutil.copytree(trained("ddp 2", "--reproducible")[1], tmp_path / "out")
    for step, kind in ((2, "fsdp 3"), (3, "one"), (4, "hsdp 4")):
        for later in range(step + 1, STEPS + 1):
            shutil.rmtree(tmp_path / f"out/step-{later:08d}")
        said = start(tmp_path, text, kind, "--reproducible", "--resume")
        assert said.code == 0, said.said
        assert f"from step {step} to step {STEPS}" in said.out
    assert numbers(tmp_path / "out") == numbers(trained("one", "--reproducible")[1])
    assert bits(tmp_path / "out") == bits(trained("one", "--reproducible")[1])


# ---------------------------------------------------------------- what is refused
WRONG = {
    "no such strategy": (("--strategy", "zero"), ("--strategy", "zero", "fsdp or hsdp")),
    "no mesh": (("--strategy", "hsdp"), ("--mesh", "replica=N,shard=N", "product is 2")),
    "axes of another strategy": (("--strategy", "hsdp", "--mesh", "dp=2"), ("--mesh", "dp=2", "replica=N,shard=N")),
    "axes of hsdp": (("--strategy", "fsdp", *REPLICA_SHARD), ("--mesh", "replica=2,shard=2", "dp=N,tp=N")),
    "other ranks": (("--strategy", "hsdp", *REPLICA_SHARD), ("--mesh", "replica=2,shard=2", "product is 2")),
    "no size": (("--strategy", "fsdp", "--mesh", "dp"), ("--mesh", "dp=N,tp=N")),
    "few micro-batches": (("--strategy", "fsdp", "--micro-batch", "14"), ("micro-batches", "fewer than data-parallel")),
}


def assert_told(done, *parts):
    """See that a message of ``parts`` was told once, and nothing of our insides."""
    assert done.code == 1, done.said
    assert done.err.count("gpt.py: ") == 1, done.err
    assert [part for part in parts if part not in done.err] == [], done.err
    assert "Traceback" not in done.said


@pytest.mark.parametrize("case", WRONG)
def test_wrong_combinations(tmp_path, text, case):
    options, parts = WRONG[case]
    done = run(tmp_path, "launch 2", *SMALL, "--data", str(text), "--out", "out", *options)
    assert_told(done, *parts)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("before", "options", "parts"),
    [
        (
            ("--reproducible",),
            ("--reproducible", "--micro-batch", "1"),
            ("micro_batch is not that of the run", "1", "2"),
        ),
        ((), ("--reproducible",), ("global_batch", "--reproducible goes on only with runs that were started with it")),
    ],
)
def test_bits_are_not_promised_from_another_start(trained, text, tmp_path, before, options, parts):
    """Neither with other micro-batches, nor after steps that were not reproducible."""
    shutil.copytree(trained("ddp 2", *before)[1], tmp_path / "out")
    taken = numbers(tmp_path / "out"), bits(tmp_path / "out")
    assert_told(start(tmp_path, text, "ddp 2", *options, "--resume"), *parts)
    assert (numbers(tmp_path / "out"), bits(tmp_path / "out")) == taken
