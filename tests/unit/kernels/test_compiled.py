"""How kernels are compiled: two twins with a cache each, and threads only where they are safe."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from hpcdist.kernels.cpu import bias, compiled


def run(program, tmp_path, **variables):
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    environment |= {"NUMBA_CACHE_DIR": str(tmp_path)} | variables
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


TWINS = """
    import numpy as np
    from hpcdist.backends import cpu
    from hpcdist.kernels.cpu import embedding
    kernel = embedding._embedding_grad
    for n in (1, 2):
        cpu.num_threads = lambda: n
        out = np.zeros((3, 5), np.float32)
        embedding.embedding_grad(np.ones((4, 5), np.float32), np.array([0, 2, 2, 0]), out)
        assert (out.sum(1) == [10, 0, 10]).all()
    for twin in (kernel._serial, kernel._threaded):
        print(sum(twin.stats.cache_hits.values()), sum(twin.stats.cache_misses.values()))
"""


def test_both_twins_are_cached_and_kept_apart(tmp_path):
    assert run(TWINS, tmp_path) == ["0", "1", "0", "1"]
    assert len(list(tmp_path.rglob("*.kernel"))) == 2
    assert run(TWINS, tmp_path) == ["1", "0", "1", "0"]


EDITED = """
    import hashlib
    sha256 = hashlib.sha256
    hashlib.sha256 = lambda data: sha256(b"an edit of a file" + data)
    import hpcdist.kernels.cpu.cache
    hashlib.sha256 = sha256
"""


def test_cache_is_of_one_state_of_the_sources(tmp_path):
    run(TWINS, tmp_path)
    assert run(EDITED + TWINS, tmp_path) == ["0", "1", "0", "1"]


@pytest.mark.parametrize("python_thread", ["main", "other"])
@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_workqueue_serves_the_main_thread_only(layer, python_thread, monkeypatch):
    monkeypatch.setattr(compiled, "_layer", layer)
    monkeypatch.setattr(compiled._told, "n", 2, raising=False)
    answers = []

    def ask():
        compiled._told.n = 2
        answers.append(compiled._may_fork(2))

    if python_thread == "main":
        ask()
    else:
        worker = threading.Thread(target=ask)
        worker.start()
        worker.join(10)
    assert answers == [layer == "omp" or python_thread == "main"]


def test_layer_is_one_that_several_threads_may_enter(tmp_path):
    program = """
        import numpy as np
        from hpcdist.backends import cpu
        cpu.set_threads(2)
        from hpcdist.kernels.cpu import bias, compiled
        bias.col_sum(np.ones((4, 3), np.float32), np.empty(3, np.float32), 0.0)
        import numba, os
        print(compiled._layer, numba.threading_layer(), os.environ["OMP_WAIT_POLICY"])
    """
    chosen, used, waiting = run(program, tmp_path)
    assert chosen == used
    assert used in ("omp", "tbb")
    assert waiting == "passive"  # threads that spin between kernels take the cores from the BLAS
    others = {"NUMBA_THREADING_LAYER": "workqueue", "OMP_WAIT_POLICY": "active"}
    assert run(program, tmp_path, **others) == ["workqueue", "workqueue", "active"]


def test_a_forked_child_keeps_to_one_thread(tmp_path):
    program = """
        import os
        import numpy as np
        from hpcdist.backends import cpu
        cpu.set_threads(2)
        from hpcdist.kernels.cpu import bias
        def total():
            out = np.empty(3, np.float32)
            bias.col_sum(np.ones((4, 3), np.float32), out, 0.0)
            return out.tolist()
        total()
        child = os.fork()
        if not child:
            os._exit(17 if total() == [4, 4, 4] else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *total())
    """
    assert run(program, tmp_path) == ["17", "4.0", "4.0", "4.0"]


def test_no_fast_math():
    for options in (bias._col_sum._serial.targetoptions, bias._col_sum._threaded.targetoptions):
        assert not options.get("fastmath")
        assert options["error_model"] == "numpy"
        assert options["nogil"]
