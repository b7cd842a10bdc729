import json
import math
import struct
import subprocess
import sys

import numpy as np
import pytest

from hpcdist.train.metrics import Metrics


def bits(x):
    return struct.pack("d", x)


def test_floats_keep_every_bit(tmp_path):
    losses = [0.1 + 0.2, math.pi * 1e-300, 1 / 3, float(np.float32(2.3)), -0.0]
    with Metrics(tmp_path) as metrics:
        for step, loss in enumerate(losses, 1):
            metrics.append({"step": step, "loss": loss, "tokens_per_s": 1e4})
    records = Metrics(tmp_path).read()
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5]
    assert [bits(r["loss"]) for r in records] == [bits(x) for x in losses]


def test_a_line_is_there_as_soon_as_it_is_appended(tmp_path):
    metrics = Metrics(tmp_path / "new/run")
    for step in range(3):
        metrics.append({"step": step})
        assert len((tmp_path / "new/run/metrics.jsonl").read_text().splitlines()) == step + 1
    metrics.close()


def strict(line):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_what_json_lacks_is_text_in_the_file_and_a_float_when_read(tmp_path):
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": np.float32("nan"), "e": "text", "f": None}
    with Metrics(tmp_path) as metrics:
        metrics.append(values)
    assert strict(metrics.path.read_text()) | {"a": 0} == {
        "a": 0,
        "b": "Infinity",
        "c": "-Infinity",
        "d": "NaN",
        "e": "text",
        "f": None,
    }
    (record,) = metrics.read()
    assert math.isnan(record["a"])
    assert math.isnan(record["d"])
    assert (record["b"], record["c"], record["e"], record["f"]) == (math.inf, -math.inf, "text", None)


def test_numpy_scalars_are_numbers(tmp_path):
    with Metrics(tmp_path) as metrics:
        metrics.append({"step": np.int64(3), "loss": np.float32(0.1), "zero-d": np.array(2.5), "flag": np.bool_(True)})
    assert metrics.read() == [{"step": 3, "loss": float(np.float32(0.1)), "zero-d": 2.5, "flag": True}]


def test_a_value_without_a_form_in_json_leaves_the_file_alone(tmp_path):
    with Metrics(tmp_path) as metrics:
        metrics.append({"step": 1})
        with pytest.raises(TypeError, match="set"):
            metrics.append({"step": {2}})
        metrics.append({"step": 3})
    assert [r["step"] for r in metrics.read()] == [1, 3]


def filled(folder, count=10):
    with Metrics(folder) as metrics:
        for step in range(1, count + 1):
            metrics.append({"step": step, "loss": 1 / step})
    return metrics


def test_drop_after_and_go_on(tmp_path):
    filled(tmp_path)
    with Metrics(tmp_path) as metrics:
        metrics.drop_after(6)
        metrics.append({"step": 7, "loss": 0.5})
        metrics.drop_after(7)
        metrics.append({"step": 8, "loss": 0.25})
    records = metrics.read()
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [r["loss"] for r in records] == [1 / s for s in range(1, 7)] + [0.5, 0.25]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_drop_after_keeps_lines_without_a_step_and_files_that_need_no_change(tmp_path):
    Metrics(tmp_path).drop_after(3)
    assert list(tmp_path.iterdir()) == []
    with Metrics(tmp_path) as metrics:
        metrics.append({"note": "start"})
    before = metrics.path.stat()
    metrics.drop_after(0)
    assert metrics.path.stat().st_ino == before.st_ino
    assert metrics.read() == [{"note": "start"}]


def test_a_failed_rewrite_keeps_the_old_lines(tmp_path, monkeypatch):
    metrics = filled(tmp_path)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        metrics.drop_after(3)
    assert len(metrics.read()) == 10


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_half_line_is_ignored_and_then_removed(tmp_path, cut):
    metrics = filled(tmp_path, 4)
    whole = metrics.path.read_bytes()
    metrics.path.write_bytes(whole[:-cut])
    left = whole[:-cut].count(b"\n")
    assert len(metrics.read()) == left
    metrics.append({"step": 99})
    metrics.close()
    assert [r["step"] for r in metrics.read()] == [*range(1, left + 1), 99]
    for line in metrics.path.read_text().splitlines():
        strict(line)


def test_drop_after_a_half_line(tmp_path):
    metrics = filled(tmp_path, 4)
    metrics.path.write_bytes(metrics.path.read_bytes()[:-3])
    metrics.drop_after(2)
    assert [r["step"] for r in metrics.read()] == [1, 2]


def test_a_killed_process_loses_no_line(tmp_path):
    code = """
import os, signal, sys
from hpcdist.train.metrics import Metrics
metrics = Metrics(sys.argv[1])
for step in range(5):
    metrics.append({"step": step})
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code, tmp_path], timeout=60, check=False)
    assert [r["step"] for r in Metrics(tmp_path).read()] == [0, 1, 2, 3, 4]


def test_a_full_disk_is_told_once_and_leaves_whole_lines(tmp_path):
    """The limit on the size of files stands for the disk: one write is cut short, the next one fails."""
    code = """
import resource, signal, sys
from hpcdist.train.metrics import Metrics
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
with Metrics(sys.argv[1]) as metrics:
    for step in range(100):
        try:
            metrics.append({"step": step})
        except OSError as error:
            print(error)
            break
print("closed")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    what, got, do, closed = done.stdout.splitlines()
    assert what == "metrics cannot be written"
    assert str(tmp_path / "metrics.jsonl") in got
    assert "do " in do
    assert closed == "closed"
    steps = [r["step"] for r in Metrics(tmp_path).read()]
    assert steps == list(range(len(steps)))
    assert len(steps) >= 5


def test_nothing_there(tmp_path):
    assert Metrics(tmp_path / "none").read() == []


@pytest.mark.parametrize("line", ["garbage", "\0" * 80, "[1, 2]", "3", ""])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    metrics = Metrics(tmp_path)
    metrics.append({"step": 1})
    metrics.close()
    with metrics.path.open("a") as file:
        file.write(f"{line}\n")
    for use in (metrics.read, lambda: metrics.drop_after(1)):
        with pytest.raises(ValueError, match=r"(?s)no record.*in line 2 of .*metrics.jsonl.*remove that line"):
            use()
    assert metrics.path.read_text() == f'{{"step": 1}}\n{line}\n'
