"""Cross-entropy with integer targets, compiled."""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, single
from hpcdist.kernels.cpu.memory import at
from hpcdist.kernels.cpu.rows import clear, part, row_top
from hpcdist.kernels.cpu.softmax import exponentials, scale_row, sum_exp
from hpcdist.kernels.indices import check_indices


@compiled
def _cross_entropy(logits, targets, ignore_index, losses, num_threads):
    m, n = logits.shape
    fits(targets.size == losses.size == m)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            losses[i] = 0.0
            if targets[i] != ignore_index:
                row = at(logits, i)
                largest = row_top(row, n)
                chosen = logits[i, targets[i]] - largest
                losses[i] = math.log(np.float64(sum_exp(row, largest, n))) - chosen


@compiled
def _cross_entropy_grad(logits, targets, ignore_index, scale, losses, num_threads):
    m, n = logits.shape
    fits(targets.size == losses.size == m)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            row = at(logits, i)
            if targets[i] == ignore_index:
                losses[i] = 0.0
                clear(row, n)
                continue
            largest = row_top(row, n)
            chosen = logits[i, targets[i]] - largest
            s = exponentials(row, row, largest, n)
            losses[i] = math.log(np.float64(s)) - chosen
            scale_row(row, single(scale) / s, n)
            logits[i, targets[i]] -= single(scale)


def cross_entropy(logits, targets, ignore_index):
    check_indices("cross_entropy: targets", targets, logits.shape[1], ignore_index)
    losses = np.empty(len(targets))
    _cross_entropy(logits, targets, ignore_index, losses)
    return float(losses.sum())


def cross_entropy_grad(logits, targets, ignore_index, scale):
    check_indices("cross_entropy: targets", targets, logits.shape[1], ignore_index)
    losses = np.empty(len(targets))
    _cross_entropy_grad(logits, targets, ignore_index, scale, losses)
    return float(losses.sum())
