"""``hpcdist run``: a job in this process behaves as under ``python``, and its failure is told once."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def run(tmp_path):
    """Write ``job.py`` and run it; return the finished process."""

    def start(text, *arguments, options=("-m", "hpcdist", "run", "job.py"), **variables):
        (tmp_path / "job.py").write_text(text)
        clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        return subprocess.run(
            [sys.executable, *options, *arguments],
            env={**clean, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return start


SHOWS = "import sys\nprint(sys.argv, sys.path[0], __name__, __file__, sys.modules['__main__'].__name__)\n"


def test_job_sees_what_a_script_sees(run, tmp_path):
    ours = run(SHOWS, "-x", "1")
    pythons = run(SHOWS, "-x", "1", options=("job.py",))
    assert ours.returncode == 0
    assert ours.stdout.replace(str(tmp_path / "job.py"), "job.py") == pythons.stdout.replace(
        str(tmp_path / "job.py"), "job.py"
    )


def test_module_sees_what_a_module_sees(run):
    ours = run(SHOWS, "-x", options=("-m", "hpcdist", "run", "-m", "job"))
    pythons = run(SHOWS, "-x", options=("-m", "job"))
    assert (ours.returncode, ours.stdout.split()[-4:]) == (0, pythons.stdout.split()[-4:])


@pytest.mark.parametrize(
    ("ending", "code", "says"),
    [
        ("", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 3, "sys.exit(3)"),
        ("sys.exit('no data')", 1, "no data"),
        ("raise ValueError('boom')", 1, "ValueError: boom"),
        ("raise KeyboardInterrupt", 130, "Traceback"),
    ],
)
def test_exit_codes_are_those_of_python(run, ending, code, says):
    done = run(f"import sys\n{ending}\n")
    assert done.returncode == code
    assert done.stderr.count(says) == 1 if says else done.stderr == ""
    assert ("rank 0 of 1" in done.stderr) is (code != 0)


def test_traceback_begins_in_the_job(run):
    done = run("def work():\n    raise ValueError('boom')\nwork()\n")
    lines = done.stderr.splitlines()
    assert lines[1] == "Traceback (most recent call last):"
    assert 'job.py", line 3' in lines[2]


def test_report_goes_to_the_launcher_instead(run, tmp_path):
    variables = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    done = run("raise ValueError('boom')", HPCDIST_ERROR_DIR=str(tmp_path), **variables)
    report = json.loads((tmp_path / "rank-2.json").read_text())
    assert (done.returncode, done.stderr) == (1, "")
    assert (report["rank"], report["size"], report["kind"], report["exit_code"]) == (2, 4, "ValueError", 1)
    assert report["traceback"].endswith("ValueError: boom\n")


def test_report_that_cannot_be_left_is_printed(run, tmp_path):
    done = run("raise ValueError('boom')", HPCDIST_ERROR_DIR=str(tmp_path / "none"))
    assert done.stderr.count("ValueError: boom") == 1


def test_threads_are_set_before_the_job_starts(run):
    variables = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "9999"}
    done = run("import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['NUMBA_NUM_THREADS'])", **variables)
    assert done.stdout == "1 1\n"


def test_crash_shows_the_stack(run, tmp_path):
    text = "import os\ndef deep():\n    os.kill(os.getpid(), 11)\ndeep()\n"
    assert "in deep" in run(text).stderr
    assert run(text, HPCDIST_ERROR_DIR=str(tmp_path)).returncode == -11
    assert "in deep" in (tmp_path / "rank-0.fault").read_text()
