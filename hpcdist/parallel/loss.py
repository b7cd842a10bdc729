"""Losses of logits of which ranks hold parts of the classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcdist.dtensor.dispatch import implicit_replication

__all__ = ["loss_parallel"]


@contextmanager
def loss_parallel() -> Iterator[None]:
    """Compute losses of distributed logits in a ``with`` block, with plain targets that all ranks have (torch's name).

    Cross-entropies over classes that are cut are always computed in parts here, without gathering logits: also outside
    of this block, with any reduction, ignored targets, weights and label smoothing. The block adds that targets may be
    plain arrays. Backward may run outside of it.
    """
    with implicit_replication():
        yield
