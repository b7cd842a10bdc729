"""The command line itself: verbs, usage errors, and what belongs to the job."""

import argparse

import pytest

from hpcdist import cli
from hpcdist.backends import mpi
from hpcdist.cli import launch, run
from hpcdist.cli.job import add_job, job_of
from hpcdist.elastic import launcher, rank
from hpcdist.elastic.job import Job


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "job.py"
    path.write_text("")
    return str(path)


@pytest.fixture
def started(monkeypatch):
    """Record what would be started."""
    calls = []
    monkeypatch.setattr(launcher, "launch", lambda job, n, hostfile: calls.append((job, n, hostfile)) or 7)
    monkeypatch.setattr(rank, "run_job", lambda job: calls.append(job) or 8)
    return calls


def test_help_names_every_verb(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in ("run", "launch", "doctor", "bench", "warmup"))


@pytest.mark.parametrize("argv", [[], ["lunch"], ["--nonsense"]])
def test_unknown_verb_is_a_usage_error(argv, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert "usage: hpcdist" in capsys.readouterr().err


def test_launch_passes_the_jobs_options_on(script, started):
    assert cli.main(["launch", "-n", "3", script, "--help", "-n", "5", "--", "x"]) == 7
    (job, n, hostfile) = started[0]
    assert (job.kind, job.target, n, hostfile) == ("script", script, 3, None)
    assert job.arguments == ("--help", "-n", "5", "--", "x")


def test_launch_takes_a_module(started):
    cli.main(["launch", "-n", "2", "-m", "json.tool", "--indent", "2"])
    job = started[0][0]
    assert (job.kind, job.target, job.arguments) == ("module", "json.tool", ("--indent", "2"))


def test_launch_takes_a_program(started):
    cli.main(["launch", "-n", "2", "--no-python", "echo", "-n"])
    job = started[0][0]
    assert (job.kind, job.command()) == ("program", ["echo", "-n"])


def test_run_takes_a_script(script, started):
    assert cli.main(["run", script, "-m", "x"]) == 8
    assert started[0].arguments == ("-m", "x")


@pytest.mark.parametrize("number", ["0", "-1", "two", "1.5"])
def test_number_of_ranks_must_make_sense(number, script, capsys):
    with pytest.raises(SystemExit) as end:
        launch.main(["-n", number, script])
    assert end.value.code == 2
    assert "argument -n" in capsys.readouterr().err


@pytest.mark.parametrize("main", [run.main, lambda rest: launch.main(["-n", "2", *rest])])
def test_job_is_required(main, capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "a job is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["launch", "-n", "2", "no/such.py"], "no such script"),
        (["launch", "-n", "2", "-m", "no_such_module"], "no such module"),
        (["launch", "-n", "2", "--no-python", "no-such-program"], "no such program"),
        (["run", "no/such.py"], "no such script"),
    ],
)
def test_missing_job_is_named(argv, says, capsys):
    assert cli.main(argv) == 2
    err = capsys.readouterr().err
    assert says in err
    assert argv[-1] in err


def test_unreadable_host_file_is_named(script, tmp_path, capsys):
    assert cli.main(["launch", "-n", "2", "--hostfile", str(tmp_path / "hosts"), script]) == 2
    assert str(tmp_path / "hosts") in capsys.readouterr().err


def test_missing_mpi_names_the_remedy(script, monkeypatch, capsys):
    monkeypatch.setattr(mpi, "_folders", lambda: iter(()))
    assert cli.main(["launch", "-n", "2", script]) == 2
    assert 'pip install "hpcdist[mpi]"' in capsys.readouterr().err


@pytest.mark.parametrize("words", [["job.py", "--", "-x"], ["--", "job.py", "--", "-x"]])
def test_two_dashes_may_end_the_options(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("")
    parser = argparse.ArgumentParser()
    add_job(parser)
    assert job_of(parser, parser.parse_args(words)) == Job("script", "job.py", ("--", "-x"))
