"""``hpcdist warmup`` reaches every kernel; what it compiles is what a job then finds."""

import importlib
import os
import re
import subprocess
import sys

import pytest

from hpcdist.cli import warmup
from hpcdist.kernels import registry


def test_every_compiled_kernel_is_exercised_with_arguments_that_fit_it(monkeypatch):
    called = set()

    def record(self, *args):
        if registry._compiled_fits(args):
            called.add(self.name)
        return self.reference(*args)

    monkeypatch.setattr(registry.Kernel, "__call__", record)
    warmup.exercise()
    compiled = {
        name
        for name, kernel in registry.KERNELS.items()
        if hasattr(importlib.import_module(f"hpcdist.kernels.cpu.{kernel.module}"), name)
    }
    assert len(compiled) > 30
    assert compiled - called == set()


@pytest.mark.parametrize("threads", [["0"], ["-2"], ["two"]])
def test_threads_must_make_sense(threads, capsys):
    with pytest.raises(SystemExit) as end:
        warmup.main(["--threads", *threads])
    assert end.value.code == 2
    assert "--threads" in capsys.readouterr().err


AFTER = """
import sys
from hpcdist import cli
from hpcdist.kernels.cpu import cache
cli.main(["bench", "step", "--size", "tiny", "--steps", "2", "--warmup", "1"])
print("after", cache.STATISTICS.compiled, cache.STATISTICS.loaded)
"""


@pytest.mark.soak
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_job_after_it_compiles_nothing(tmp_path, threads):
    def run(*command):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": threads}
        return subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=280, check=True
        ).stdout

    first, second = (run("-m", "hpcdist", "warmup", "--threads", threads) for _ in range(2))
    compiled = int(re.search(r"warmup: (\d+) kernels compiled", first)[1])
    assert compiled > 30
    assert f"0 kernels compiled in 0.0 s, {compiled} found" in second
    assert re.fullmatch(r"after 0 [1-9]\d*", run("-c", AFTER).splitlines()[-1])
