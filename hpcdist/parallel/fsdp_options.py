"""Options of FullyShardedDataParallel under torch's names, and what they are for fully_shard."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.errors import explain
from hpcdist.nn import BatchNorm1d, Module
from hpcdist.parallel.mixed_precision import MixedPrecisionPolicy
from hpcdist.parallel.offload import CPUOffloadPolicy, OffloadPolicy
from hpcdist.parallel.sharded import ShardedUnit

__all__ = ["BackwardPrefetch", "CPUOffload", "MixedPrecision", "ShardingStrategy", "UnitOptions"]


class ShardingStrategy(Enum):
    """What ranks hold of parameters, gradients and optimizer state.

    FULL_SHARD: a part each, gathered for forward and again for backward. SHARD_GRAD_OP: the same, but what was gathered
    for forward stays until backward is through. NO_SHARD: all of them, gradients are added up over ranks. HYBRID_SHARD
    and _HYBRID_SHARD_ZERO2: as the first and the second within a group of ranks (those of a node), with copies in
    the other groups.
    """

    FULL_SHARD = auto()
    SHARD_GRAD_OP = auto()
    NO_SHARD = auto()
    HYBRID_SHARD = auto()
    _HYBRID_SHARD_ZERO2 = auto()

    @property
    def is_hybrid(self) -> bool:
        """Whether groups of ranks hold copies of shards."""
        return self in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)

    @property
    def reshard_after_forward(self) -> bool | None:
        """What it is for ``fully_shard``."""
        return None if self in (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD) else False


class BackwardPrefetch(Enum):
    """When backward gathers what comes next: before it computes a unit's gradients, or after it."""

    BACKWARD_PRE = auto()
    BACKWARD_POST = auto()


@dataclass(frozen=True)
class CPUOffload:
    """Where parameters, gradients and optimizer state rest.

    Attributes
    ----------
    offload_params : bool
        On the host, also where a GPU computes.
    """

    offload_params: bool = False


@dataclass(frozen=True)
class MixedPrecision:
    """Precision of what travels and is computed with; see :class:`MixedPrecisionPolicy`.

    Attributes
    ----------
    param_dtype : dtype, optional
        In which parameters are gathered.
    reduce_dtype : dtype, optional
        In which gradients are reduced; None: ``param_dtype``.
    buffer_dtype : dtype, optional
        To which floating buffers are rounded, once, at construction.
    keep_low_precision_grads : False
        Of torch; gradients come back in the dtype of what rests.
    cast_forward_inputs : bool
        Whether floating inputs of every unit are rounded to ``param_dtype``.
    cast_root_forward_inputs : bool
        Whether those of the outermost module are.
    _module_classes_to_ignore : collection of class
        Modules of these become units of their own, in full precision.
    """

    param_dtype: Any = None
    reduce_dtype: Any = None
    buffer_dtype: Any = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = False
    cast_root_forward_inputs: bool = True
    _module_classes_to_ignore: tuple[type[Module], ...] = (BatchNorm1d,)

    def __post_init__(self) -> None:
        if self.keep_low_precision_grads:
            do = "leave it out: the optimizer sees gradients in the dtype of its parameters"
            raise ValueError(explain("MixedPrecision: keep_low_precision_grads", got=True, do=do))
        if self.buffer_dtype is not None and np.dtype(self.buffer_dtype).kind not in "fV":
            got = self.buffer_dtype
            raise ValueError(explain("MixedPrecision: buffer_dtype", got=got, expected="a floating dtype"))
        self.of_root()  # checks the others

    def of_unit(self) -> MixedPrecisionPolicy:
        """Return what it is for ``fully_shard``."""
        reduce_dtype = self.param_dtype if self.reduce_dtype is None else self.reduce_dtype
        return MixedPrecisionPolicy(self.param_dtype, reduce_dtype, cast_forward_inputs=self.cast_forward_inputs)

    def of_root(self) -> MixedPrecisionPolicy:
        """Return what is done with the inputs of the outermost module."""
        return MixedPrecisionPolicy(self.param_dtype, self.reduce_dtype)

    def round_buffer(self, data: Array) -> Array:
        """Return a buffer rounded to ``buffer_dtype``, in what is computed with."""
        if self.buffer_dtype is None or data.dtype.kind not in "fV":
            return data
        computes = MixedPrecisionPolicy(self.buffer_dtype).computes(data, data)
        rounded: Array = data.astype(self.buffer_dtype).astype(computes, copy=False)
        return rounded

    def leaves_out(self, module: Module) -> bool:
        """Say whether a module is to stay in full precision."""
        return isinstance(module, tuple(self._module_classes_to_ignore))


_KINDS: dict[str, type[Any] | tuple[type[Any], ...]] = {
    "sharding_strategy": ShardingStrategy,
    "cpu_offload": (CPUOffload, type(None)),
    "backward_prefetch": (BackwardPrefetch, type(None)),
    "mixed_precision": (MixedPrecision, type(None)),
    "forward_prefetch": bool,
}


@dataclass(frozen=True)
class UnitOptions:
    """Arguments of :class:`FullyShardedDataParallel` that may be others for each unit; None: torch's defaults.

    Raises
    ------
    TypeError
        If one is of another class.
    """

    sharding_strategy: ShardingStrategy
    cpu_offload: CPUOffload | None
    backward_prefetch: BackwardPrefetch | None
    mixed_precision: MixedPrecision | None
    forward_prefetch: bool

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                expected = (kind[0] if isinstance(kind, tuple) else kind).__name__
                raise TypeError(explain(f"FullyShardedDataParallel: {name}", got=repr(value), expected=expected))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``fully_shard``."""
        offloads = self.cpu_offload is not None and self.cpu_offload.offload_params
        return {
            "reshard_after_forward": self.sharding_strategy.reshard_after_forward,
            "mp_policy": None if self.mixed_precision is None else self.mixed_precision.of_unit(),
            "offload_policy": CPUOffloadPolicy() if offloads else OffloadPolicy(),
        }

    def prefetch(self, unit: ShardedUnit) -> None:
        """Have a unit gather ahead what comes next, or not."""
        backward = self.backward_prefetch is BackwardPrefetch.BACKWARD_PRE
        unit.settings.prefetches = backward or self.forward_prefetch
        unit.settings.ahead = None if self.forward_prefetch else []
        unit.settings.ahead_in_backward = None if backward else []
