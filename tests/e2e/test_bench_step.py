"""``hpcdist bench step``: fixed weights and batches, and the line it leaves."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import numpy_gpt
import pytest

from hpcdist.cli.bench import step as bench

SIZE = bench.Size(n_layer=1, n_head=2, d_model=16, seq=8, vocab=12, batch=2)
SIZE_FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in vars(SIZE).items()]


def run(*arguments, ranks=None, **variables):
    launch = ["launch", "-n", str(ranks), "-m", "hpcdist"] if ranks else []
    command = [
        sys.executable,
        "-m",
        "hpcdist",
        *launch,
        "bench",
        "step",
        *SIZE_FLAGS,
        "--steps=2",
        "--warmup=1",
        *map(str, arguments),
    ]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def expected_losses(world):
    """Train with the hand-written model and optimizer."""
    config = numpy_gpt.Config(num_layers=1, num_heads=2, width=16, mlp="gelu_tanh")
    weights = {bench._our_name(k): v.astype(np.float64) for k, v in bench.initial_weights(SIZE).items()}
    state, losses = {}, []
    for step in range(3):
        parts = [bench.batch(SIZE, step, rank, world) for rank in range(world)]
        tokens, targets = (np.concatenate(p) for p in zip(*parts, strict=True))
        loss, grads = numpy_gpt.loss_and_grads(weights, tokens, targets, config)
        options = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
        numpy_gpt.adamw_step(weights, grads, state, step + 1, **options)
        losses.append(loss)
    return losses


@pytest.mark.parametrize(
    ("mode", "ranks", "world"), [("eager", None, 1), ("ddp", 2, 2), ("ddp", 3, 3), ("fsdp", 2, 2), ("tp", 2, 1)]
)
def test_losses_equal_those_of_the_hand_written_model(tmp_path, mode, ranks, world):
    """Under each strategy; ranks that share layers have one batch between them."""
    path = tmp_path / "result.jsonl"
    done = run("--json", path, "--label", "mine", "--mode", mode, ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert re.search(r"mine: \d+ tokens/s  step .* loss \S+ -> \S+", done.stdout), done.stdout
    (line,) = path.read_text().splitlines()
    result = json.loads(line)
    assert (result["label"], result["world"]) == ("mine", world)
    assert result["params"] == sum(value.size for value in bench.initial_weights(SIZE).values())
    np.testing.assert_allclose(result["losses"], expected_losses(world), rtol=0, atol=1e-5)
    assert result["tokens_per_s"] == pytest.approx(16 * world / result["step_ms"] * 1e3)
    assert result["min_ms"] <= result["step_ms"]
    assert 0 < result["cpu_min_ms"] <= result["cpu_ms"]
    assert len(result["peak_rss_mb"]) == len(result["base_rss_mb"]) == (ranks or 1)
    assert ("hidden_share" in result) == (mode == "ddp")


def test_weights_go_out_and_come_back(tmp_path):
    path = tmp_path / "weights.npz"
    assert run("--save-weights", path).returncode == 0
    with np.load(path) as file:
        weights = {name: file[name] for name in file.files}
    assert weights.keys() == bench.initial_weights(SIZE).keys()
    weights = {name: value * 0 for name, value in weights.items()}
    np.savez(path, **weights)
    done = run("--weights", path, "--json", tmp_path / "result.jsonl")
    assert done.returncode == 0, done.stderr
    losses = json.loads((tmp_path / "result.jsonl").read_text())["losses"]
    assert losses[0] == pytest.approx(np.log(12), abs=1e-6)


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--mode", "pp"], ["--weights", "nowhere.npz"]])
def test_wrong_arguments_are_errors(arguments):
    done = run(*arguments)
    assert done.returncode != 0
    assert arguments[1] in done.stderr


FEW = ["--d-model=128", "--seq=128", "--batch=4", "--steps=4", "--warmup=3"]


def faults(folder, *arguments, ranks=None, **variables):
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    done = run(*FEW, "--json", path, *arguments, ranks=ranks, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())["minor_faults"]


def test_a_steady_step_touches_next_to_no_fresh_memory(tmp_path):
    """A pass over its activations alone would be over a thousand pages of 4 KiB, as generic forms show."""
    assert faults(tmp_path) < 50
    assert faults(tmp_path, HPCDIST_KERNELS_OFF="*") > 1000


@pytest.mark.parametrize("mode", ["fsdp", "tp"])
def test_what_ranks_receive_is_no_fresh_memory(tmp_path, mode):
    """Four sums over ranks of activations, or a gathered block, are over 200 pages."""
    assert faults(tmp_path, "--mode", mode, ranks=2) < 50
