"""Which parts of a module become units of their own: policies for FullyShardedDataParallel and fully_shard.

Each is called with a module and says whether that is one; torch's functions take their options by
``functools.partial``. Containers that have no forward of their own are none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from hpcdist.errors import explain
from hpcdist.nn import Module

__all__ = [
    "CustomPolicy",
    "ModuleWrapPolicy",
    "always_wrap_policy",
    "lambda_auto_wrap_policy",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
]


class ModuleWrapPolicy:
    """Modules of some classes are units.

    Parameters
    ----------
    module_classes : collection of class

    Raises
    ------
    TypeError
        If something is no class of modules.
    """

    def __init__(self, module_classes: Collection[type[Module]]) -> None:
        for kind in module_classes:
            if not (isinstance(kind, type) and issubclass(kind, Module)):
                raise TypeError(explain("ModuleWrapPolicy: module_classes", got=kind, expected="classes of modules"))
        self.module_classes = tuple(module_classes)

    def __call__(self, module: Module) -> bool:
        """Say whether a module is a unit."""
        return isinstance(module, self.module_classes)

    def __repr__(self) -> str:
        return f"ModuleWrapPolicy({', '.join(kind.__name__ for kind in self.module_classes)})"


class CustomPolicy:
    """A function says which modules are units, and perhaps with what options.

    Parameters
    ----------
    lambda_fn : function ``(module) -> bool or dict``
        A dict: a unit, for which these arguments of :class:`FullyShardedDataParallel` replace those of the whole.
    """

    def __init__(self, lambda_fn: Callable[[Module], bool | dict[str, Any]]) -> None:
        self._lambda_fn = lambda_fn

    def options(self, module: Module) -> dict[str, Any] | None:
        """Return the arguments of a unit; None: the module is none.

        Raises
        ------
        ValueError
            If the function returned something else than a bool or a dict.
        """
        said: Any = self._lambda_fn(module)
        if not isinstance(said, (bool, dict)):
            expected = "True, False, or a dict of arguments"
            raise ValueError(explain("CustomPolicy: lambda_fn returned", got=repr(said), expected=expected))
        return said if isinstance(said, dict) else {} if said else None

    def __call__(self, module: Module) -> bool:
        """Say whether a module is a unit.

        Raises
        ------
        ValueError
            If it is one with options of its own, for which there is no place here.
        """
        options = self.options(module)
        if options:
            do = "give this policy to FullyShardedDataParallel, or call fully_shard on such parts with their options"
            raise ValueError(explain(f"CustomPolicy: {type(module).__name__} has options", got=options, do=do))
        return options is not None


def always_wrap_policy(module: Module) -> bool:
    """Say that a module is a unit."""
    return type(module).forward is not Module.forward


def lambda_auto_wrap_policy(module: Module, *, lambda_fn: Callable[[Module], bool]) -> bool:
    """Say what ``lambda_fn`` says of a module."""
    return bool(lambda_fn(module))


def transformer_auto_wrap_policy(module: Module, *, transformer_layer_cls: Collection[type[Module]]) -> bool:
    """Say whether a module is a layer of one of these classes."""
    return isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: Module,
    *,
    min_num_params: int = 100_000_000,
    exclude_wrap_modules: Collection[type[Module]] = (),
) -> bool:
    """Say whether a module has so many elements of parameters that are not in units inside of it.

    Parameters
    ----------
    min_num_params : int
    exclude_wrap_modules : collection of class
        Which are no units themselves.
    """
    excluded = tuple(exclude_wrap_modules)

    def is_unit(part: Module) -> bool:
        return always_wrap_policy(part) and not isinstance(part, excluded) and left(part) >= min_num_params

    def left(part: Module) -> int:
        own: int = sum(p.size for p in part.slots.values())
        return own + sum(left(child) for child in part.children.values() if not is_unit(child))

    return is_unit(module)
