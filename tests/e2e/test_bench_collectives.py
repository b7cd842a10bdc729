"""``hpcdist bench collectives``: every verb, ours beside mpi4py's, and the line it leaves."""

import json
import subprocess
import sys

import pytest

from hpcdist.cli.bench import collectives

VERBS = {
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "gather",
    "scatter",
    "all_to_all",
    "send and recv",
    "barrier",
}


def bench(ranks, *options):
    launch = ["launch", "-n", str(ranks), "-m", "hpcdist"] if ranks > 1 else []
    command = [sys.executable, "-m", "hpcdist", *launch, "bench", "collectives", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_every_verb_is_measured_twice(tmp_path):
    done = bench(2, "--sizes", "8", "64", "512", "--json", str(tmp_path / "b.jsonl"), "--label", "here")
    assert done.returncode == 0, done.stderr
    line = json.loads((tmp_path / "b.jsonl").read_text())
    assert (line["label"], line["ranks"]) == ("here", 2)
    assert {(row["verb"], row["num_bytes"]) for row in line["rows"]} == {(v, n) for v in VERBS for n in (8, 64, 512)}
    assert all(row["ours_us"] > 0 and row["raw_us"] > 0 for row in line["rows"])
    assert done.stdout.count("mpi4py us") == 3
    assert all(verb in done.stdout for verb in VERBS)


def test_one_rank_is_told_what_to_do():
    done = bench(1)
    assert done.returncode == 1
    assert "hpcdist launch -n 2" in done.stderr


@pytest.mark.parametrize(("num_bytes", "text"), [(8, "8 B"), (4096, "4 KiB"), (2 << 20, "2 MiB")])
def test_sizes_in_words(num_bytes, text):
    assert collectives._text(num_bytes) == text
    row = collectives.Row("barrier", num_bytes, 2.0, 1.0)
    assert collectives._lines([row], num_bytes)[1].split() == [
        "barrier",
        "2.0",
        "1.0",
        "2.00",
        "1.0",
        f"{num_bytes / 2e3:.2f}",
    ]
