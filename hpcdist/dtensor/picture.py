"""Which ranks hold which part of a distributed tensor: as text, in colour, and as an SVG file. Communicates nothing."""

from __future__ import annotations

import os
import sys
from html import escape
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.picture_parts import Parts, Ranks, named, parts
from hpcdist.dtensor.placements import Partial
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain

__all__ = ["visualize_sharding"]

_COLOURS = ("#cfe3f7", "#fbe0c3", "#d6ecd2", "#f6d3d8", "#e3d8f1", "#fdf1b8", "#cdeeee", "#e4e4e4")
_LEFT, _WIDTH, _HEIGHT, _LINE = 92, 560, 320, 18
_FONT = 'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222"'


def visualize_sharding(
    dtensor: DTensor, header: str = "", use_rich: bool = False, *, path: str | os.PathLike[str] | None = None
) -> None:
    """Print which ranks hold which rows and columns, on the mesh's first rank.

    The others may call it, or not: what it says follows from the layout.

    Parameters
    ----------
    dtensor : DTensor
        Of one or two dimensions.
    header : str
        A line above.
    use_rich : bool
        In colour; needs the package ``rich``.
    path : path, optional
        Draw the picture as an SVG file, too.

    Raises
    ------
    ValueError
        For another number of dimensions, or a path that does not end in ``.svg``.
    ModuleNotFoundError
        If ``rich`` is asked for and not installed.
    """
    layout = dtensor.layout
    if len(layout.shape) not in (1, 2):
        do = "look at repr(x.layout)"
        raise ValueError(explain("visualize_sharding: shape", got=layout.shape, expected="1 or 2 dimensions", do=do))
    if path is not None and Path(path).suffix != ".svg":
        raise ValueError(explain("visualize_sharding: path", got=str(path), expected="a name that ends in .svg"))
    if use_rich and find_spec("rich") is None:
        raise ModuleNotFoundError(explain("visualize_sharding: use_rich", got="no rich", do="pip install rich"))
    if any(layout.coordinate):
        return
    titles = [*([header] if header else []), repr(layout), *_pending(layout)]
    found = parts(layout)
    if use_rich:
        _print_in_colour(titles, found)
    else:
        sys.stdout.write("\n".join([*titles, *_lines(found), ""]))
    if path is not None:
        Path(path).write_text(_svg(titles, found), encoding="utf-8")


def _pending(layout: Layout) -> list[str]:
    names = [n for n, p in zip(layout.mesh.axis_names, layout.placements, strict=True) if isinstance(p, Partial)]
    return [f"not reduced over {', '.join(names)}"] if names else []


def _idle(found: Parts) -> list[str]:
    return [f"{named(found.idle)}: nothing"] if found.idle else []


def _lines(found: Parts) -> list[str]:
    """Return the table as lines of text."""
    cells = [[row, *map(named, line)] for row, line in zip(found.rows, found.holders, strict=True)]
    table = [["", *found.columns], *cells]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    return [*lines, *_idle(found)]


# ---------------------------------------------------------------- in colour
def _colours(found: Parts) -> dict[Ranks, str]:
    """Return a colour for every set of ranks."""
    sets = dict.fromkeys(holders for line in found.holders for holders in line)
    return {holders: _COLOURS[i % len(_COLOURS)] for i, holders in enumerate(sets)}


def _print_in_colour(titles: list[str], found: Parts) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours, table = _colours(found), Table("", *found.columns, show_lines=True)
    for row, line in zip(found.rows, found.holders, strict=True):
        table.add_row(row, *(Text(named(holders), f"black on {colours[holders]}") for holders in line))
    console = Console()
    for shown in (*map(Text, titles), table, *map(Text, _idle(found))):
        console.print(shown)


# ---------------------------------------------------------------- as an SVG file
def _svg(titles: list[str], found: Parts) -> str:
    """Draw cells in proportion to their extents."""
    top = _LINE * (len(titles) + 3)
    xs, ys = _edges(found.widths, _LEFT, _WIDTH), _edges(found.heights, top, _HEIGHT)
    bottom, width = ys[-1] + 2.5 * _LINE, _LEFT + _WIDTH + _LINE
    colours = _colours(found)
    drawn = [_text(_LINE, _LINE * (i + 1.5), line, "start") for i, line in enumerate(titles)]
    drawn += [_text(_middle(xs, j), top - 8, name, "middle") for j, name in enumerate(found.columns)]
    drawn += [_text(_LEFT - 8, _middle(ys, i) + 4, name, "end") for i, name in enumerate(found.rows)]
    for i, line in enumerate(found.holders):
        for j, holders in enumerate(line):
            drawn.append(_rectangle(xs[j : j + 2], ys[i : i + 2], colours[holders]))
            drawn.append(_text(_middle(xs, j), _middle(ys, i) + 4, named(holders), "middle"))
    drawn += [_text(_LINE, ys[-1] + 1.5 * _LINE, line, "start") for line in _idle(found)]
    size = f'viewBox="0 0 {width} {bottom:.0f}" width="{width}" height="{bottom:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT}>\n<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, *drawn, "</svg>\n"])


def _edges(extents: list[int], start: float, length: float) -> list[float]:
    """Return the pixels where cells begin, and where the last one ends."""
    total = max(sum(extents), 1)
    return [start + end / total * length for end in accumulate(extents, initial=0)]


def _middle(edges: list[float], i: int) -> float:
    return (edges[i] + edges[i + 1]) / 2


def _rectangle(xs: list[float], ys: list[float], colour: str) -> str:
    (x, right), (y, bottom) = xs, ys
    place = f'x="{x:.1f}" y="{y:.1f}" width="{right - x:.1f}" height="{bottom - y:.1f}"'
    return f'<rect {place} fill="{colour}" stroke="#666"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
