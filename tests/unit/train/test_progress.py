import io

import pytest

from hpcdist.train.progress import Progress


class Terminal(io.StringIO):
    """Keeps what a person sees: the text after the last erase of each line."""

    def isatty(self):
        return True

    def screen(self):
        return [line.rsplit("\x1b[K", 1)[-1] for line in self.getvalue().split("\n")]


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def run(stream, steps, seconds_a_step, **kw):
    clock = Clock()
    with Progress(steps, stream, clock=clock, **kw) as progress:
        for step in range(1, steps + 1):
            clock.now += seconds_a_step
            progress.update(step, 5.0 / step, 12345.6)
    return stream.getvalue().splitlines() if stream else None


def test_plain_lines_begin_with_the_first_step_and_end_with_the_last():
    lines = run(io.StringIO(), 1000, 0.1)
    assert lines[0] == "step    1/1000  loss 5.0000  12,346 tokens/s"
    assert lines[-1] == "step 1000/1000  loss 0.0050  12,346 tokens/s  done"
    assert not any("\r" in line or "\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("steps", "seconds", "least", "most"),
    [
        (1000, 0.001, 2, 2),  # one second: first and last
        (100, 0.1, 4, 7),  # ten seconds: one every 2 s
        (1000, 0.1, 15, 27),  # 100 s: about twenty
        (10_000, 0.1, 15, 27),  # 17 minutes: about twenty
        (20_000, 1.0, 320, 345),  # 5.5 hours: one a minute
    ],
)
def test_number_of_plain_lines(steps, seconds, least, most):
    assert least <= len(run(io.StringIO(), steps, seconds)) <= most


def test_time_left_is_at_the_pace_so_far():
    clock, stream = Clock(), io.StringIO()
    progress = Progress(100_000, stream, clock=clock)
    for step, seconds in ((20, 0.0), (30, 20.0), (40, 120.0)):  # resumed at 20: 2 s a step, then 7 s a step on average
        clock.now += seconds
        progress.update(step, 1.0, 1.0)
    assert [line.rsplit("  ", 1)[1] for line in stream.getvalue().splitlines()] == [
        "1 tokens/s",
        "55:32 h left",
        "194:22 h left",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(3, "27 s"), (20, "3:00 min"), (400, "1:00 h"), (410, "1:01 h")])
def test_units_of_time(seconds, text):
    clock, stream = Clock(), io.StringIO()
    progress = Progress(11, stream, clock=clock)
    progress.update(1, 1.0, 1.0)
    clock.now += seconds
    progress.update(2, 1.0, 1.0)
    assert stream.getvalue().splitlines()[-1].endswith(f"  {text} left")


def test_a_terminal_shows_one_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    run(terminal, 50, 0.01)
    assert terminal.getvalue().count("\n") == 1
    assert terminal.screen() == ["step 50/50  loss 0.1000  12,346 tokens/s  done", ""]


def test_say_does_not_break_the_live_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal, clock = Terminal(), Clock()
    with Progress(9, terminal, clock=clock) as progress:
        progress.say("hello")
        progress.update(1, 1.0, 1.0)
        progress.say("val_loss 2.5")
        clock.now += 1
        progress.update(2, 0.5, 1.0)
    screen = terminal.screen()
    assert screen[:2] == ["hello", "val_loss 2.5"]
    assert screen[2].startswith("step 2/9  loss 0.5000")
    assert screen[3:] == [""]


def test_a_terminal_is_not_flooded(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    run(terminal, 1000, 0.01)  # ten seconds
    assert 90 <= terminal.getvalue().count("\x1b[K") <= 110


def test_a_narrow_terminal_cuts_the_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "20")
    terminal = Terminal()
    run(terminal, 3, 0.01)
    assert max(map(len, terminal.screen())) == 19


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in "".join(run(Terminal(), 5, 3.0))


def test_say_elsewhere_is_a_line():
    stream = io.StringIO()
    progress = Progress(9, stream, clock=Clock())
    progress.update(1, 1.0, 1.0)
    progress.say("val_loss 2.5")
    assert stream.getvalue().splitlines()[1:] == ["val_loss 2.5"]


def test_other_ranks_say_nothing():
    assert run(io.StringIO(), 5, 3.0, enabled=False) == []


def test_lines_go_to_standard_output(capsys):
    with Progress(9, clock=Clock()) as progress:
        progress.say("hello")
        progress.update(9, 1.0, 1.0)
    assert capsys.readouterr() == ("hello\nstep 9/9  loss 1.0000  1 tokens/s  done\n", "")


def test_the_live_line_is_on_the_terminal_and_the_log_holds_lines_only(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal, log = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sys.stdout", log)
    with Progress(9, clock=Clock()) as progress:
        progress.update(1, 1.0, 1.0)
        progress.say("val_loss 2.5")
    assert log.getvalue() == "val_loss 2.5\n"
    assert terminal.screen() == ["step 1/9  loss 1.0000  1 tokens/s", ""]


def test_a_rank_whose_output_only_looks_like_a_terminal_gets_plain_lines(monkeypatch):
    """Open MPI gives ranks a pseudo-terminal as standard output, also where it ends in a file."""
    monkeypatch.setenv("TERM", "xterm")
    pseudo = Terminal()
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("sys.stdout", pseudo)
    run(None, 5, 3.0)
    assert "\x1b" not in pseudo.getvalue()
    assert len(pseudo.getvalue().splitlines()) == 5


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", "a?b??"), ("latin-1", "a\xe4b??"), ("utf-8", "a\xe4b\ufffd\u4e2d")]
)
def test_characters_that_the_stream_lacks_do_not_end_the_run(encoding, shown):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding)
    Progress(1, stream).say("a\xe4b\ufffd\u4e2d")
    assert raw.getvalue().decode(encoding) == f"{shown}\n"


def test_closed_streams_are_no_error(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    with Progress(1) as progress:  # raises nothing
        progress.say("nobody hears this")
        progress.update(1, 1.0, 1.0)
