"""What the main job says, and what it leaves behind."""

import json
import os
import pty
import re
import xml.etree.ElementTree as ElementTree

import gpt_job
import h5py
import numpy as np
import numpy_gpt
import pytest
from gpt_job import STEPS, TINY, losses, metrics, run, start

FLAGS = """
    --data --steps --global-batch --micro-batch --seq --layers --width --heads --lr --seed --strategy --save-every
    --val-every --out --resume --mesh --sample-tokens
"""


def test_metrics_have_every_digit(ran):
    records = metrics(ran("launch 2")[1])
    assert [set(r) for r in records] == [
        {"step", "loss", "tokens_per_s"} | ({"val_loss"} if r["step"] in (10, 20) else set()) for r in records
    ]
    assert min(r["tokens_per_s"] for r in records) > 0
    # a mean of float32 losses in float64: rounded anywhere, it would be a short number
    assert np.mean([len(repr(r["loss"])) > 12 for r in records]) > 0.9


def test_it_says_first_what_it_will_do(ran, text):
    said, out = ran("launch 2")
    size = sum(w.size for w in gpt_job.weights_of(out, STEPS).values())
    head = said.out[: said.out.index("step  1/20")]
    for word in (f"{size:,} parameters", "dp=2", "replicate", "threads a rank 1", str(text), "to step 20", "out:"):
        assert head.count(word) == 1, word
    assert said.out.count("parameters") == 1
    assert said.err.replace("hpcdist launch: running as root: OMPI_ALLOW_RUN_AS_ROOT set\n", "") == ""


@pytest.mark.parametrize("way", ["python", "launch 2"])
def test_it_says_how_it_goes_in_plain_lines(ran, way):
    said, out = ran(way)
    validation = [f"{loss:.4f}" for loss in losses(out)[1]]
    assert re.findall(r"val_loss (\S+)", said.out) == [*validation, validation[-1]]
    assert f"step 20/20  loss {losses(out)[0][-1]:.4f}" in said.out
    assert said.out.count("--- sample") == 1
    assert not re.search(r"[^\n\t -~\u00a0-\uffff]", said.out)


def test_a_terminal_has_a_live_line(tmp_path, text):
    main, terminal = pty.openpty()
    options = ("--data", str(text), "--out", "out", "--val-every", "0", "--steps", "120")
    started = start(tmp_path, "python", *TINY, *options, stdout=terminal, stderr=terminal, variables={"TERM": "xterm"})
    os.close(terminal)
    said = b""
    while block := _read(main):
        said += block
    os.close(main)
    assert started.wait(gpt_job.LIMIT_S) == 0
    shown = [line.rsplit("\r\x1b[K", 1)[-1].rstrip("\r") for line in said.decode().split("\n")]
    assert said.count(b"\r\x1b[Kstep ") > 3
    assert re.search(rb"\d s left\r\x1b\[K", said)
    last = f"step 120/120  loss {metrics(tmp_path / 'out')[-1]['loss']:.4f}  "
    assert [line.startswith(last) for line in shown if line.startswith("step")] == [True]
    assert sum(line.startswith("val_loss") for line in shown) == 2


def _read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux says that nobody holds the other end any more
        return b""


def test_loss_curve_is_a_picture(ran):
    root = ElementTree.fromstring((ran("launch 2")[1] / "loss.svg").read_text())
    assert root.tag.endswith("svg")
    assert len(root.findall(".//{*}polyline")) == 2


def test_checkpoints_are_plain_hdf5(ran):
    _, out = ran("launch 2")
    assert sorted(p.name for p in out.glob("step-*")) == [f"step-{step:08d}" for step in (5, 10, 15, 20)]
    home = out / "step-00000020"
    assert sorted(p.name for p in home.iterdir()) == ["index.h5", "manifest.json"]
    assert json.loads((home / "manifest.json").read_text())["step"] == 20
    config = numpy_gpt.Config(num_layers=1, num_heads=2, width=32, mlp="gelu")
    shapes = {name: w.shape for name, w in gpt_job.weights_of(out, 20).items()}
    assert shapes == numpy_gpt.weight_shapes(config, 256, gpt_job.SEQ)
    with h5py.File(home / "index.h5") as file:
        assert sorted(name for name, item in file.items() if isinstance(item, h5py.Group)) == [
            "fixed",
            "optim",
            "random",
            "sampler",
            "schedule",
            "train",
        ]
        assert file["sampler/samples_seen"][()] == 20 * gpt_job.GLOBAL_BATCH


@pytest.mark.parametrize("way", ["python", "launch 2"])
def test_a_second_run_into_a_folder_must_say_resume(ran, text, way):
    _, out = ran("launch 2")
    before = gpt_job.snapshot(out)
    again = run(out.parent, way, *TINY, "--data", str(text), "--out", "out")
    assert again.code == 1
    assert again.said.count("--resume to go on") == 1, again.said
    assert gpt_job.snapshot(out) == before


def test_default_data_and_default_folder(tmp_path):
    """The command of the README, on a smaller model."""
    said = run(tmp_path, "launch 2", *TINY, "--steps", "2")
    assert said.code == 0, said.said
    assert re.search(r"Python's standard library, \d+ files", said.out)
    (out,) = tmp_path.glob("runs/gpt-*")
    assert [r["step"] for r in metrics(out)] == [1, 2]
    assert str(out.relative_to(tmp_path)) in said.out


@pytest.mark.parametrize("way", ["python", "launch 2"])
def test_help_names_every_flag_once(tmp_path, way):
    said = run(tmp_path, way, "--help")
    assert said.code == 0
    assert [flag for flag in FLAGS.split() if said.out.count(f"\n  {flag} ") != 1] == []
