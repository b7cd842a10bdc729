"""The main job on meshes: ranks that share layers, or batches and layers, give the losses and files of one rank."""

import re
import shutil

import gpt_job
import numpy as np
import pytest
from gpt_job import metrics, run

from hpcdist import checkpoint

STEPS = 6
SMALL = (
    *("--steps", str(STEPS), "--seq", "32", "--layers", "2", "--global-batch", "8", "--micro-batch", "2"),
    *("--save-every", "1", "--val-every", "3", "--sample-tokens", "9"),
)
MODELS = {
    "even": ("--width", "64", "--heads", "4"),
    "uneven": (
        *("--width", "48", "--heads", "3", "--seq", "31", "--positions", "learned"),
        *("--mlp", "swiglu", "--norm", "rms", "--dropout", "0.1"),
    ),
}
MESHES = {
    "one": ("python", ()),
    "tp=2": ("launch 2", ("--strategy", "tp")),
    "tp=3": ("launch 3", ("--strategy", "tp")),
    "dp=2, tp=2": ("launch 4", ("--strategy", "tp", "--mesh", "dp=2,tp=2")),
}


def start(folder, text, mesh, model, *more):
    way, options = MESHES[mesh]
    return run(folder, way, *SMALL, *MODELS[model], "--data", str(text), "--out", "out", *options, *more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text):
    """Return a function that trains a model on a mesh, once; what it said, and its folder."""
    done = {}

    def get(mesh, model):
        if (mesh, model) not in done:
            folder = tmp_path_factory.mktemp("run")
            done[mesh, model] = start(folder, text, mesh, model), folder / "out"
        said, out = done[mesh, model]
        assert said.code == 0, said.said
        return said, out

    return get


def assert_same_run(out, reference):
    """See that losses and validation losses of all steps are those of another run."""
    mine, theirs = metrics(out), metrics(reference)
    assert [r["step"] for r in mine] == list(range(1, STEPS + 1))
    for key in ("loss", "val_loss"):
        expected = [r.get(key, 0) for r in theirs]
        np.testing.assert_allclose([r.get(key, 0) for r in mine], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("mesh", "model"),
    [("tp=2", "even"), ("tp=3", "even"), ("dp=2, tp=2", "even"), ("tp=2", "uneven"), ("dp=2, tp=2", "uneven")],
)
def test_losses_and_samples_are_those_of_one_rank(trained, mesh, model):
    (said, out), (alone, reference) = trained(mesh, model), trained("one", model)
    assert_same_run(out, reference)
    sample = re.compile(r"--- sample\n.*?\n---", re.DOTALL)
    assert sample.findall(said.out) == sample.findall(alone.out)
    assert len(sample.findall(said.out)) == 1


@pytest.mark.parametrize(("mesh", "told"), [("tp=2", "dp=1, tp=2"), ("dp=2, tp=2", "dp=2, tp=2")])
def test_it_says_on_which_mesh(trained, mesh, told):
    said, _ = trained(mesh, "even")
    assert f"mesh {told}, strategy tp, " in said.out
    size = sum(w.size for w in gpt_job.weights_of(trained("one", "even")[1], STEPS).values())
    assert f"{size:,} parameters" in said.out


@pytest.mark.parametrize(("mesh", "model"), [("tp=2", "uneven"), ("dp=2, tp=2", "even")])
def test_checkpoints_hold_whole_arrays_of_the_usual_names(trained, mesh, model):
    mine, theirs = (checkpoint.load(trained(where, model)[1]) for where in (mesh, "one"))
    assert mine.keys() == theirs.keys()
    assert {f"optim/exp_avg/{name}" for name in ("wte.weight", "blocks.1.attn.qkv.weight")} <= mine.keys()
    for name, value in theirs.items():
        assert np.shape(mine[name]) == np.shape(value), name
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(mine[name], value, rtol=0, atol=2e-3, err_msg=name)


@pytest.mark.parametrize("model", ["even", "uneven"])
def test_a_run_goes_on_with_any_other_mesh(trained, text, tmp_path, model):
    """Steps 1 and 2 with tp=2, step 3 with tp=3, step 4 with one rank, the rest with dp=2 and tp=2."""
    shutil.copytree(trained("tp=2", model)[1], tmp_path / "out")
    for step, mesh in ((2, "tp=3"), (3, "one"), (4, "dp=2, tp=2")):
        for later in range(step + 1, STEPS + 1):
            shutil.rmtree(tmp_path / f"out/step-{later:08d}")
        said = start(tmp_path, text, mesh, model, "--resume")
        assert said.code == 0, said.said
        assert f"from step {step} to step {STEPS}" in said.out
        assert_same_run(tmp_path / "out", trained("one", model)[1])


# ---------------------------------------------------------------- what is refused
WRONG = {
    "no sizes": ("dp,tp", ("--strategy", "tp")),
    "no numbers": ("dp=one,tp=2", ("--strategy", "tp")),
    "no mesh": ("", ()),
    "another axis": ("dp=2,pp=1", ()),
    "an axis twice": ("dp=2,dp=2", ()),
    "no ranks": ("dp=0,tp=2", ("--strategy", "tp")),
    "fewer than none": ("dp=-1,tp=-2", ("--strategy", "tp")),
    "other ranks": ("dp=2,tp=2", ("--strategy", "tp")),
}


def assert_told(done, *parts):
    """See that a message of ``parts`` was told once, and nothing of our insides."""
    assert done.code == 1, done.said
    assert done.err.count("gpt.py: ") == 1, done.err
    assert [part for part in parts if part not in done.err] == []
    assert "Traceback" not in done.said


@pytest.mark.parametrize("case", WRONG)
def test_wrong_meshes(tmp_path, text, case):
    mesh, options = WRONG[case]
    done = run(tmp_path, "launch 2", *SMALL, "--data", str(text), "--out", "out", "--mesh", mesh, *options)
    assert_told(done, "--mesh", "dp=N,tp=N, whose product is 2, the number of ranks")
    assert not (tmp_path / "out").exists()


def test_ranks_share_layers_only_if_told_to(tmp_path, text):
    done = run(tmp_path, "launch 2", *SMALL, "--data", str(text), "--out", "out", "--mesh", "tp=2")
    assert_told(done, "--mesh", "tp=2", "say --strategy tp to share layers")


def test_micro_batches_are_for_the_ranks_that_share_batches(tmp_path, text):
    """One micro-batch is enough for two ranks that share layers, not for two that share batches."""
    options = (*SMALL, "--steps", "1", "--data", str(text), "--out", "out", "--micro-batch", "8")
    assert_told(run(tmp_path, "launch 2", *options), "fewer than data-parallel ranks")
    assert run(tmp_path, "launch 2", *options, "--strategy", "tp").code == 0
