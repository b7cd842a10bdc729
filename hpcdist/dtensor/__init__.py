"""Arrays placed on a mesh: placements, and the one table of moves between them (torch.distributed.tensor)."""

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

__all__ = [
    "Invariant",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "chunk_range",
    "chunk_sizes",
    "dual",
    "imove",
    "local_shape",
    "move",
    "redistribute",
    "transpose",
]
