"""Arrays on a real card, on ranks that share it: case B08, and every verb; through the launcher, as jobs run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = Path(__file__).parent / "gpu_ranks.py"
LIMIT_S = 300

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("case", ["b08", "b08_outside_the_stream", "verbs", "large_messages", "interfaces"])
def test_arrays_on_a_card(case, num_ranks):
    """With what the MPI says about itself (auto), and through the host whatever it says (off)."""
    for setting in ("auto", "off"):
        done = subprocess.run(
            [sys.executable, "-m", "hpcdist", "launch", "-n", str(num_ranks), str(RANKS), case],
            env={**os.environ, "HPCDIST_CUDA_AWARE": setting, "HPCDIST_CHECK": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, (setting, done.stdout + done.stderr)
        assert done.stdout.count("right on rank") == num_ranks, (setting, done.stdout)
