"""Deferred parameters of which a rank draws its part."""

from __future__ import annotations

import numpy as np

from hpcdist.array import Array
from hpcdist.dtensor.layout import Layout
from hpcdist.nn.deferral import Deferred, draw

__all__ = ["drawn"]


def drawn(parameter: Deferred, layout: Layout) -> Array:
    """Return the first values of what this rank holds, drawn without the rest."""
    held = np.empty(layout.local_shape, parameter.dtype)
    for there, here in layout.boxes:
        held[here] = draw(parameter, tuple(s.start for s in there), tuple(s.stop - s.start for s in there))
    return held
