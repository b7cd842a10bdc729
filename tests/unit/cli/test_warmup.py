"""``hpcdist warmup`` reaches every kernel; what it compiles is what a job then finds."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcdist.cli import warmup
from hpcdist.kernels import cpu, registry
from hpcdist.kernels.cpu.compiled import Compiled

FOLDER = Path(cpu.__file__).parent


def test_every_compiled_function_is_exercised(monkeypatch):
    called = set()

    def both(self, *args):
        """Tell which functions would be compiled; compute by the generic form."""
        if registry._compiled_fits(args):
            (self._compiled or self._load())(*args)
        return self.reference(*args)

    monkeypatch.setattr(Compiled, "__call__", lambda self, *args: called.add(self))
    monkeypatch.setattr(registry.Kernel, "__call__", both)
    with np.errstate(all="ignore"):
        warmup.exercise()
    modules = [importlib.import_module(f"hpcdist.kernels.cpu.{file.stem}") for file in FOLDER.glob("*.py")]
    compiled = {kernel for module in modules for kernel in vars(module).values() if isinstance(kernel, Compiled)}
    assert len(compiled) > 40
    assert {kernel.source.__name__ for kernel in compiled - called} == set()


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
