"""The loss curve as a picture: an SVG written by hand, a PNG where matplotlib is installed."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

__all__ = ["write_png", "write_svg"]

PathLike: TypeAlias = str | os.PathLike[str]

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 24, 52, 54
_MOST_POINTS = 2000
_TRAIN, _VALIDATION = "#2a6fbb", "#d1495b"
_HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" \
width="{_WIDTH}" height="{_HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#444">
<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>"""


@dataclass(frozen=True)
class _Axis:
    """One axis: its range in data and in pixels, and where its ticks are."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, count: int, *, whole: bool) -> _Axis:
        """Return an axis for ``values`` with about ``count`` round ticks.

        With ``whole`` ticks are at integers and the range is that of the values, else it reaches to the next ticks.
        """
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
            low, high = low - 0.5, high + 0.5
        step = _nice((high - low) / count)
        if whole:
            step = max(step, 1.0)
        else:
            low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return cls(low, high, start, end, tuple(round(i * step, 12) for i in range(first, last + 1)))

    def __call__(self, value: float) -> float:
        """Return the pixel of ``value``."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def write_svg(
    path: PathLike,
    steps: Sequence[int],
    losses: Sequence[float],
    val_steps: Sequence[int] = (),
    val_losses: Sequence[float] = (),
    title: str = "Loss",
) -> None:
    """Draw training and validation loss over steps, as an SVG file.

    Values that are not finite are left out. Of very many steps each pixel keeps its lowest and highest loss.

    Parameters
    ----------
    path : path
    steps, losses : sequences of one length
        Loss in nats.
    val_steps, val_losses : sequences of one length
        May be empty.
    title : str
    """
    train, validation = _finite(steps, losses), _finite(val_steps, val_losses)
    points = train + validation
    x = _Axis.over([step for step, _ in points], _LEFT, _WIDTH - _RIGHT, 8, whole=True)
    y = _Axis.over([loss for _, loss in points], _HEIGHT - _BOTTOM, _TOP, 6, whole=False)
    parts = [
        _HEAD,
        _text(_LEFT, 26, title, "start", 'font-size="16" font-weight="600" fill="#222"'),
        *_grid(x, y),
        _polyline(x, y, _thinned(train), f'stroke="{_TRAIN}" stroke-width="1.4"'),
        _polyline(x, y, validation, f'stroke="{_VALIDATION}" stroke-width="2"'),
        *_dots(x, y, validation, _VALIDATION),
        *(_dots(x, y, train, _TRAIN) if len(train) == 1 else ()),
        *_legend(train, validation),
        "</svg>\n",
    ]
    Path(path).write_text("\n".join(part for part in parts if part), encoding="utf-8")


def write_png(
    path: PathLike,
    steps: Sequence[int],
    losses: Sequence[float],
    val_steps: Sequence[int] = (),
    val_losses: Sequence[float] = (),
    title: str = "Loss",
) -> bool:
    """Draw the same as :func:`write_svg` with matplotlib, as a PNG file; return False where that is not installed."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="step", ylabel="loss (nats)")
    axes.plot(steps, losses, color=_TRAIN, linewidth=1.2, label="training")
    if val_steps:
        axes.plot(val_steps, val_losses, color=_VALIDATION, linewidth=2, marker="o", markersize=4, label="validation")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return True


_Points: TypeAlias = list[tuple[float, float]]


def _finite(steps: Sequence[int], losses: Sequence[float]) -> _Points:
    return [(float(s), float(v)) for s, v in zip(steps, losses, strict=True) if math.isfinite(v)]


def _thinned(points: _Points) -> _Points:
    """Return ``points``, or of very many the lowest and highest of each run, so that no peak is lost."""
    run = -(-len(points) * 2 // _MOST_POINTS)
    if run <= 2:
        return points
    runs = [points[i : i + run] for i in range(0, len(points), run)]
    return sorted({pick(part, key=lambda point: point[1]) for part in runs for pick in (min, max)})


def _nice(step: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _grid(x: _Axis, y: _Axis) -> list[str]:
    line = '<path d="{}" stroke="{}" fill="none"/>'
    across = " ".join(f"M{_LEFT} {y(tick):.1f}H{_WIDTH - _RIGHT}" for tick in y.ticks)
    marks = " ".join(f"M{x(tick):.1f} {_HEIGHT - _BOTTOM}v5" for tick in x.ticks)
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    return [
        line.format(across, "#e6e6e6"),
        line.format(f"M{_LEFT} {_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT} {marks}", "#888"),
        *(_text(x(tick), _HEIGHT - _BOTTOM + 20, f"{tick:,.6g}", "middle") for tick in x.ticks),
        *(_text(_LEFT - 9, y(tick) + 4, f"{tick:.6g}", "end") for tick in y.ticks),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, "step", "middle"),
        _text(18, middle, "loss (nats)", "middle", f'transform="rotate(-90 18 {middle})"'),
    ]


def _polyline(x: _Axis, y: _Axis, points: _Points, style: str) -> str:
    if not points:
        return ""
    pixels = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
    return f'<polyline points="{pixels}" fill="none" stroke-linejoin="round" {style}/>'


def _dots(x: _Axis, y: _Axis, points: _Points, colour: str) -> list[str]:
    return [f'<circle cx="{x(step):.1f}" cy="{y(loss):.1f}" r="3" fill="{colour}"/>' for step, loss in points]


def _legend(train: _Points, validation: _Points) -> list[str]:
    """Name each curve, with its last value, in the upper right corner."""
    named = [("training", _TRAIN, train), ("validation", _VALIDATION, validation)]
    parts, right = [], _WIDTH - _RIGHT
    for row, (name, colour, points) in enumerate(entry for entry in named if entry[2]):
        baseline = _TOP + 18 + 18 * row
        parts.append(_text(right - 34, baseline, f"{name} {points[-1][1]:.4f}", "end"))
        parts.append(f'<path d="M{right - 28} {baseline - 4}h20" stroke="{colour}" stroke-width="2.5"/>')
    return parts


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{escape(text)}</text>'
