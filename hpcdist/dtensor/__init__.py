"""Arrays placed on a mesh: placements, and the one table of moves between them (torch.distributed.tensor)."""

from hpcdist.dtensor import functional
from hpcdist.dtensor.dispatch import implicit_replication
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.move import imove, move, transpose
from hpcdist.dtensor.placements import (
    Invariant,
    Partial,
    Placement,
    Replicate,
    Shard,
    chunk_range,
    chunk_sizes,
    dual,
    local_shape,
)
from hpcdist.dtensor.redistribute import redistribute
from hpcdist.dtensor.tensor import DTensor

__all__ = [
    "DTensor",
    "Invariant",
    "Layout",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "chunk_range",
    "chunk_sizes",
    "dual",
    "functional",
    "imove",
    "implicit_replication",
    "local_shape",
    "move",
    "redistribute",
    "transpose",
]
