"""Arrays placed on a mesh: placements, and the one table of moves between them (torch.distributed.tensor)."""

from hpcdist.dtensor import functional, heads, norms, picking, reductions, rules, vocabulary  # noqa: F401 (they register what they know)
from hpcdist.dtensor.chunks import Chunk
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.dtensor.dispatch import implicit_replication
from hpcdist.dtensor.distribute import distribute_tensor
from hpcdist.dtensor.distribute_module import distribute_module
from hpcdist.dtensor.factories import arange, empty, eye, from_function, full, ones, rand, randn, zeros
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.local_map import local_map
from hpcdist.dtensor.move import move
from hpcdist.dtensor.picture import visualize_sharding
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
from hpcdist.dtensor.register import register_sharding
from hpcdist.dtensor.tensor import DTensor

__all__ = [
    "Chunk",
    "CommDebugMode",
    "DTensor",
    "Invariant",
    "Layout",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "arange",
    "chunk_range",
    "chunk_sizes",
    "distribute_module",
    "distribute_tensor",
    "dual",
    "empty",
    "eye",
    "from_function",
    "full",
    "functional",
    "implicit_replication",
    "local_map",
    "local_shape",
    "move",
    "ones",
    "rand",
    "randn",
    "redistribute",
    "register_sharding",
    "visualize_sharding",
    "zeros",
]
