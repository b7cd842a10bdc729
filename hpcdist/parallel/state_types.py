"""Which form the state dicts of FullyShardedDataParallel have: whole arrays, or parts that know their place."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from hpcdist.errors import explain

__all__ = [
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "OptimStateDictConfig",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
]


class StateDictType(Enum):
    """FULL_STATE_DICT: whole arrays, as one process would have. SHARDED_STATE_DICT: distributed tensors."""

    FULL_STATE_DICT = auto()
    SHARDED_STATE_DICT = auto()


@dataclass(frozen=True)
class StateDictConfig:
    """How values are given; ``offload_to_cpu``: on the host."""

    offload_to_cpu: bool = False


@dataclass(frozen=True)
class FullStateDictConfig(StateDictConfig):
    """How whole arrays are given; ``rank0_only``: other ranks get an empty dict."""

    rank0_only: bool = False


@dataclass(frozen=True)
class ShardedStateDictConfig(StateDictConfig):
    """How parts are given."""


@dataclass(frozen=True)
class OptimStateDictConfig:
    """How values of optimizers are given; ``offload_to_cpu``: on the host."""

    offload_to_cpu: bool = True


@dataclass(frozen=True)
class FullOptimStateDictConfig(OptimStateDictConfig):
    """How whole arrays of optimizers are given; ``rank0_only``: other ranks get an empty dict."""

    rank0_only: bool = False


@dataclass(frozen=True)
class ShardedOptimStateDictConfig(OptimStateDictConfig):
    """How parts of optimizers are given."""


_CONFIGS: dict[StateDictType, tuple[type[StateDictConfig], type[OptimStateDictConfig]]] = {
    StateDictType.FULL_STATE_DICT: (FullStateDictConfig, FullOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
}


@dataclass(frozen=True)
class StateDictSettings:
    """The form of state dicts of models and optimizers.

    Raises
    ------
    TypeError
        If one of the three is of another class.
    RuntimeError
        If a config is not for this type.
    """

    state_dict_type: StateDictType = StateDictType.FULL_STATE_DICT
    state_dict_config: StateDictConfig = field(default_factory=FullStateDictConfig)
    optim_state_dict_config: OptimStateDictConfig = field(default_factory=FullOptimStateDictConfig)

    @classmethod
    def of(
        cls, kind: StateDictType, config: StateDictConfig | None, optim_config: OptimStateDictConfig | None
    ) -> StateDictSettings:
        """Return settings in which what was left out is the default of its type."""
        if not isinstance(kind, StateDictType):
            raise TypeError(explain("state_dict_type", got=repr(kind), expected="a StateDictType"))
        default, optim_default = _CONFIGS[kind]
        return cls(
            kind, default() if config is None else config, optim_default() if optim_config is None else optim_config
        )

    def __post_init__(self) -> None:
        expected = _CONFIGS[self.state_dict_type]
        given = {"state_dict_config": self.state_dict_config, "optim_state_dict_config": self.optim_state_dict_config}
        for (name, value), kind in zip(given.items(), expected, strict=True):
            if not isinstance(value, kind):
                what = f"{name} for {self.state_dict_type.name}"
                raise RuntimeError(explain(what, got=type(value).__name__, expected=kind.__name__))

    @property
    def is_full(self) -> bool:
        """Whether values are whole."""
        return self.state_dict_type is StateDictType.FULL_STATE_DICT
