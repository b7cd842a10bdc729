import re
import sys
from xml.etree import ElementTree as ET

import pytest

from hpcdist.train.curve import write_png, write_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(tmp_path, *args, **kw):
    path = tmp_path / "loss.svg"
    write_svg(path, *args, **kw)
    return ET.fromstring(path.read_text(encoding="utf-8"))


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def lines(root):
    return [
        [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
        for line in root.iter(f"{SVG}polyline")
    ]


def scale(root, anchor, coordinate):
    """Return a function from a tick's value to its pixel, from two of the tick labels."""
    ticks = [
        (float(e.text.replace(",", "")), float(e.get(coordinate)))
        for e in root.iter(f"{SVG}text")
        if e.get("text-anchor") == anchor and re.fullmatch(r"[\d.,-]+", e.text)
    ]
    (a, pa), (b, pb) = ticks[0], ticks[-1]
    return lambda value: pa + (value - a) / (b - a) * (pb - pa)


def test_both_curves_lie_where_the_axes_say(tmp_path):
    steps, losses = [1, 100, 250, 400], [5.5, 3.0, 2.2, 1.9]
    root = drawn(tmp_path, steps, losses, [100, 400], [3.1, 2.0], "A <small> model & more")
    across, up = scale(root, "middle", "x"), scale(root, "end", "y")
    train, validation = lines(root)
    for points, xs, ys in ((train, steps, losses), (validation, [100, 400], [3.1, 2.0])):
        for (px, py), step, loss in zip(points, xs, ys, strict=True):
            assert px == pytest.approx(across(step), abs=0.2)
            assert py == pytest.approx(up(loss) - 4, abs=0.2)  # labels stand 4 below their line
    assert "A <small> model & more" in texts(root)
    assert {"step", "loss (nats)", "training 1.9000", "validation 2.0000"} <= set(texts(root))
    assert len(list(root.iter(f"{SVG}circle"))) == 2


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.2, 5.7, ["1", "2", "3", "4", "5", "6"]),
        (0.001, 0.0052, ["0.001", "0.002", "0.003", "0.004", "0.005", "0.006"]),
        (0, 1200, ["0", "200", "400", "600", "800", "1000", "1200"]),
    ],
)
def test_ticks_are_round_and_enclose_the_values(tmp_path, low, high, ticks):
    root = drawn(tmp_path, [1, 2], [low, high])
    assert [e.text for e in root.iter(f"{SVG}text") if e.get("text-anchor") == "end"][:-1] == ticks


def test_steps_are_whole_numbers(tmp_path):
    root = drawn(tmp_path, [1, 2, 3], [3.0, 2.0, 1.0])
    middle = [e.text for e in root.iter(f"{SVG}text") if e.get("text-anchor") == "middle"]
    assert middle[:3] == ["1", "2", "3"]


@pytest.mark.parametrize("losses", [[], [2.5], [2.5, 2.5], [float("nan"), 2.5], [float("inf")]], ids=str)
def test_few_equal_or_no_values(tmp_path, losses):
    root = drawn(tmp_path, list(range(len(losses))), losses)
    everything = ET.tostring(root, encoding="unicode").lower()
    assert "nan" not in everything
    assert "inf" not in everything
    finite = [x for x in losses if x == 2.5]
    assert len(list(root.iter(f"{SVG}circle"))) == (len(finite) == 1)


def test_a_long_run_stays_small_and_keeps_its_peak(tmp_path):
    losses = [2.0] * 300_000
    losses[123_456] = 9.0
    root = drawn(tmp_path, range(300_000), losses)
    assert (tmp_path / "loss.svg").stat().st_size < 60_000
    (points,) = lines(root)
    assert min(y for _, y in points) == pytest.approx(scale(root, "end", "y")(9.0) - 4, abs=0.2)


def test_lengths_must_agree(tmp_path):
    with pytest.raises(ValueError, match=r"longer|shorter"):
        drawn(tmp_path, [1, 2], [1.0])


def test_no_picture_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcdist.train.curve.find_spec", lambda name: None)
    assert write_png(tmp_path / "loss.png", [1, 2], [2.0, 1.0]) is False
    assert list(tmp_path.iterdir()) == []


def test_png(tmp_path):
    pytest.importorskip("matplotlib", reason="extra [viz]")
    assert write_png(tmp_path / "loss.png", [1, 2], [2.0, 1.0], [2], [1.5], "title") is True
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules
