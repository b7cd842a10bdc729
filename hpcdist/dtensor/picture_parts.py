"""Which ranks hold which part of an array of one or two dimensions, and how that is said."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hpcdist.dtensor.cut import Runs
from hpcdist.dtensor.layout import Layout

__all__ = ["Parts", "Ranks", "named", "parts"]

Ranks = tuple[int, ...]


class Parts(NamedTuple):
    """An array cut along all lines where what a rank holds begins or ends.

    Attributes
    ----------
    rows, columns : list of str
        Names of the cells' places; an array of one dimension is one row without a name.
    heights, widths : list of int
        Their extents.
    holders : list of list of tuple of int
        The ranks that hold each cell.
    idle : tuple of int
        Ranks that hold nothing.
    """

    rows: list[str]
    columns: list[str]
    heights: list[int]
    widths: list[int]
    holders: list[list[Ranks]]
    idle: Ranks


def parts(layout: Layout) -> Parts:
    """Return who holds what, from the layout alone."""
    places = list(np.ndindex(layout.mesh.shape))
    ranks = layout.mesh.ranks.reshape(-1).tolist()
    flat = len(layout.shape) == 1
    cells = [_cells(layout, dim, places) for dim in range(len(layout.shape))]
    held = [[_inside(layout.runs_at(dim, p), c) for dim, c in enumerate(cells)] for p in places]
    rows, columns = ((0, 1),) if flat else cells[0], cells[-1]

    def holders(row: int, column: int) -> Ranks:
        return tuple(r for r, mine in zip(ranks, held, strict=True) if mine[-1][column] and (flat or mine[0][row]))

    table = [[holders(i, j) for j in range(len(columns))] for i in range(len(rows))]
    busy = {rank for line in table for cell in line for rank in cell}
    return Parts(
        ["" if flat else _span("row", cell) for cell in rows],
        [_span("element" if flat else "column", cell) for cell in columns],
        [stop - start for start, stop in rows],
        [stop - start for start, stop in columns],
        table,
        tuple(rank for rank in ranks if rank not in busy),
    )


def _cells(layout: Layout, dim: int, places: list[tuple[int, ...]]) -> Runs:
    """Return the runs of indices that no rank's part begins or ends in."""
    ends = {0, layout.shape[dim]}.union(*(run for place in places for run in layout.runs_at(dim, place)))
    return tuple(pairwise(sorted(ends)))


def _inside(held: Runs, cells: Runs) -> list[bool]:
    return [any(low <= start and stop <= high for low, high in held) for start, stop in cells]


def _span(name: str, cell: tuple[int, int]) -> str:
    start, stop = cell
    return f"{name} {start}" if stop == start + 1 else f"{name}s {start}-{stop - 1}"


def named(ranks: Ranks) -> str:
    """Name ranks; of more than two neighbours the first and the last."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    told = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(told)}"
