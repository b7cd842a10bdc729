"""A line search for the strong Wolfe conditions: Nocedal and Wright 2006, algorithms 3.5 and 3.6.

Trial steps are minima of cubics (equation 3.59). A bracket is given up when no gradient in it could change anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hpcdist.array import Array

__all__ = ["Point", "strong_wolfe"]

DECREASE, CURVATURE, MAX_EVALUATIONS = 1e-4, 0.9, 25


@dataclass(frozen=True)
class Point:
    """A place on the line: step, loss, gradient (n,), and slope along the line."""

    step: float
    loss: float
    gradient: Array
    slope: float


def strong_wolfe(evaluate: Callable[[float], Point], start: Point, step: float, tolerance: float) -> tuple[Point, int]:
    """Return a point that decreases the loss enough and whose slope is flat enough, and the number of evaluations.

    Parameters
    ----------
    evaluate : function ``(step) -> Point``
        Computes loss and gradient there.
    start : Point
        Where the line begins: step 0, a negative slope.
    step : float
        First trial.
    tolerance : float
        Stop when the bracket, in steps, is shorter.
    """
    search = _Search(evaluate, start, tolerance)
    return search.run(step), search.evaluations


class _Search:
    def __init__(self, evaluate: Callable[[float], Point], start: Point, tolerance: float) -> None:
        self._evaluate, self.start, self.tolerance, self.evaluations = evaluate, start, tolerance, 0

    def at(self, step: float) -> Point:
        self.evaluations += 1
        return self._evaluate(step)

    @property
    def spent(self) -> bool:
        return self.evaluations > MAX_EVALUATIONS

    def too_high(self, point: Point) -> bool:
        return point.loss > self.start.loss + DECREASE * point.step * self.start.slope

    def flat(self, point: Point) -> bool:
        return abs(point.slope) <= -CURVATURE * self.start.slope

    def run(self, step: float) -> Point:
        """Step out until two points have a good one between them, then close in on it."""
        before, point = self.start, self.at(step)
        while not self.spent:
            if self.too_high(point) or (self.evaluations > 2 and point.loss >= before.loss):
                return self._close_in(before, point)
            if self.flat(point):
                return point
            if point.slope >= 0:
                return self._close_in(before, point)
            reach = point.step + 0.01 * (point.step - before.step), 10 * point.step
            before, point = point, self.at(_cubic_minimum(before, point, *reach))
        return self._close_in(self.start, point)

    def _close_in(self, a: Point, b: Point) -> Point:
        """Shorten the bracket [a, b], in any order, around a point that is good."""
        low, high = (a, b) if a.loss <= b.loss else (b, a)
        stuck = False
        while not self.spent and abs(high.step - low.step) >= self.tolerance:
            ends = sorted((low.step, high.step))
            first, second = sorted((low, high), key=lambda p: p.step)
            step, stuck = _kept_inside(_cubic_minimum(first, second, *ends), stuck, *ends)
            point = self.at(step)
            if self.too_high(point) or point.loss >= low.loss:
                low, high = (low, point) if low.loss <= point.loss else (point, low)
                continue
            if self.flat(point):
                return point
            if point.slope * (high.step - low.step) >= 0:
                high = low
            low = point
        return low


def _kept_inside(step: float, stuck: bool, left: float, right: float) -> tuple[float, bool]:
    """Move a step away from the ends the second time that it comes near one; say whether this was the first."""
    margin = 0.1 * (right - left)
    if min(right - step, step - left) >= margin:
        return step, False
    if stuck or step >= right or step <= left:
        return (right - margin if abs(step - right) < abs(step - left) else left + margin), False
    return step, True


def _cubic_minimum(a: Point, b: Point, left: float, right: float) -> float:
    """Return where the cubic through two points, with their slopes, is lowest in [left, right]."""
    if a.step > b.step:
        a, b = b, a
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.step - b.step) if a.step != b.step else math.nan
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return (left + right) / 2
    d2 = math.sqrt(square)
    width = b.slope - a.slope + 2 * d2
    if width == 0:
        return (left + right) / 2
    return min(max(b.step - (b.step - a.step) * (b.slope + d2 - d1) / width, left), right)
