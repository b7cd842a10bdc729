"""State dicts of FullyShardedDataParallel, and of the optimizers of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hpcdist.nn import Module
from hpcdist.optim.optimizer import Optimizer
from hpcdist.parallel.fsdp_state import local_state, model_state, optimizer_state, optimizer_state_to_load
from hpcdist.parallel.state_types import OptimStateDictConfig, StateDictConfig, StateDictSettings, StateDictType

__all__ = ["StateDicts"]


class StateDicts(Module):
    """What :class:`FullyShardedDataParallel` does about state.

    Attributes
    ----------
    settings : StateDictSettings
        The form of state dicts that was chosen.
    """

    settings: StateDictSettings

    def __init__(self) -> None:
        super().__init__()
        self.settings = StateDictSettings()

    def state_dict(self, mode: StateDictType | None = None) -> dict[str, Any]:
        """Return parameters and buffers by name, in the form that was chosen; default: whole arrays.

        Collective over the ranks, unless it is SHARDED_STATE_DICT.
        """
        settings = self.settings if mode is None else StateDictSettings.of(mode, None, None)
        return model_state(self, settings)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Copy whole arrays, distributed tensors, or this rank's parts into parameters and buffers.

        Collective over the mesh of distributed tensors that are laid out in another way than the parameters.
        """
        super().load_state_dict(local_state(self, state), strict)

    @staticmethod
    def set_state_dict_type(
        module: Module,
        state_dict_type: StateDictType,
        state_dict_config: StateDictConfig | None = None,
        optim_state_dict_config: OptimStateDictConfig | None = None,
    ) -> StateDictSettings:
        """Choose the form of state dicts of all wrapped modules in a module; return what the first one had.

        Raises
        ------
        RuntimeError, TypeError
            If a config is not for this type.
        """
        settings = StateDictSettings.of(state_dict_type, state_dict_config, optim_state_dict_config)
        before = StateDicts.get_state_dict_type(module)
        for m in module.modules():
            if isinstance(m, StateDicts):
                m.settings = settings
        return before

    @staticmethod
    def get_state_dict_type(module: Module) -> StateDictSettings:
        """Return the form of state dicts that was chosen."""
        found = (m.settings for m in module.modules() if isinstance(m, StateDicts))
        return next(found, StateDictSettings())

    @staticmethod
    @contextmanager
    def state_dict_type(
        module: Module,
        state_dict_type: StateDictType,
        state_dict_config: StateDictConfig | None = None,
        optim_state_dict_config: OptimStateDictConfig | None = None,
    ) -> Iterator[None]:
        """Choose the form of state dicts in a block."""
        kind = StateDicts
        before = kind.set_state_dict_type(module, state_dict_type, state_dict_config, optim_state_dict_config)
        try:
            yield
        finally:
            settings = before.state_dict_type, before.state_dict_config, before.optim_state_dict_config
            kind.set_state_dict_type(module, *settings)

    @staticmethod
    def optim_state_dict(
        model: Module, optim: Optimizer, optim_state_dict: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the state of an optimizer by the names of the model, in the form that was chosen; default: whole.

        Collective over the ranks, unless it is SHARDED_STATE_DICT. Arrays have the shapes of parameters.

        Parameters
        ----------
        optim_state_dict : mapping, optional
            What ``optim.state_dict()`` returned; default: that of now.

        Raises
        ------
        ValueError
            If the optimizer has a parameter that the model does not have.
        """
        settings = StateDicts.get_state_dict_type(model)
        return optimizer_state(model, optim, optim_state_dict, settings)

    @staticmethod
    def optim_state_dict_to_load(
        model: Module,
        optim: Optimizer,
        optim_state_dict: Mapping[str, Any],
        is_named_optimizer: bool = False,  # noqa: ARG004 (all are)
        load_directly: bool = False,
    ) -> dict[str, Any]:
        """Return this rank's part of what :meth:`optim_state_dict` returned on any number of ranks, to be loaded.

        Collective over the mesh of distributed tensors that are laid out in another way than the parameters.

        Parameters
        ----------
        is_named_optimizer : bool
            Of torch, and without effect.
        load_directly : bool
            Also give it to ``optim.load_state_dict``.

        Raises
        ------
        ValueError
            If names or sizes are others.
        """
        found = optimizer_state_to_load(model, optim, optim_state_dict)
        if load_directly:
            optim.load_state_dict(found)
        return found
