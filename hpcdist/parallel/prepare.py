"""Styles for what goes into a module and what comes out of it, parameters left as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hpcdist.autograd import Tensor
from hpcdist.comm import DeviceMesh
from hpcdist.dtensor.dispatch import implicit_replication
from hpcdist.dtensor.placements import Placement
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.parallel.laying import check_layout, invariant, laid, local_parts, moved
from hpcdist.parallel.style import Call, Change, ParallelStyle, Wrap

__all__ = ["PrepareModuleInput", "PrepareModuleInputOutput", "PrepareModuleOutput"]

Layouts: TypeAlias = "Placement | tuple[Placement | None, ...] | None"
"""One placement, or one for each; None: left as it is."""


class _Pairs:
    """How values come and how they shall be, by position or by name.

    Parameters
    ----------
    as_local : bool
        Whether they are used as plain tensors then, whose gradients are complete where all ranks have the whole.
    """

    def __init__(
        self, who: str, have: Mapping[Any, Placement | None], want: Mapping[Any, Placement | None], as_local: bool
    ) -> None:
        if have.keys() != want.keys():
            raise ValueError(
                explain(f"{who}: layouts do not pair", got=_told(want), expected=f"one each: {_told(have)}")
            )
        for layout in (*have.values(), *want.values()):
            check_layout(who, layout)
        self.who, self.have, self.as_local = who, have, as_local
        self.want = {key: invariant(p) if as_local and p else p for key, p in want.items()}

    def prepared(self, key: Any, x: Any, mesh: DeviceMesh) -> Any:
        """Return the value as it shall be. Collective over the mesh, unless that is free."""
        have, want = self.have.get(key), self.want.get(key)
        if x is None or (have is None and not isinstance(x, DTensor)):
            return x
        if not isinstance(x, (Tensor, DTensor)) and not hasattr(x, "dtype"):
            raise ValueError(explain(f"{self.who}: {key!r}", got=type(x).__name__, expected="a tensor or an array"))
        y = x if have is None else laid(x, mesh, have)
        y = y if want is None else moved(y, want)
        return local_parts(y) if self.as_local else y

    def prepared_all(self, values: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        """Return values as they shall be, by position."""
        if not self.have:
            return values
        if len(values) != len(self.have):
            raise ValueError(explain(f"{self.who}: number of values", got=len(values), expected=len(self.have)))
        return tuple(self.prepared(place, x, mesh) for place, x in enumerate(values))

    def changes(self, what: str) -> list[Change]:
        """Return a change a value; None: it stays."""
        return [Change(what, have, self.want[key] or have) for key, have in self.have.items()]


def _told(layouts: Mapping[Any, Placement | None]) -> str:
    return ", ".join(f"{key}: {layout}" for key, layout in layouts.items()) or "none"


def _by_place(layouts: Layouts) -> dict[Any, Placement | None]:
    if layouts is None:
        return {}
    return dict(enumerate(layouts if isinstance(layouts, (tuple, list)) else (layouts,)))


@dataclass(frozen=True, kw_only=True)
class PrepareModuleInput(ParallelStyle):
    """Lay out the inputs of a module, by position and by name; parameters are left to other styles.

    Parameters
    ----------
    input_layouts : Placement, or one (or None) a positional input
        What plain inputs are; Replicate means that all ranks have the same. An input that is None stays None.
    desired_input_layouts : the same
        How the module gets them. Replicate: gathered once, and used in different ways, so that gradients are added up
        once however many layers use it.
    input_kwarg_layouts, desired_input_kwarg_layouts : mapping of str to Placement
        The same for inputs by name; others are left alone.
    use_local_output : bool
        Hand the module what this rank holds, as plain tensors.

    Raises
    ------
    ValueError
        If layouts do not pair; at a call, if there are more or fewer inputs than layouts.
    """

    input_layouts: Layouts = None
    desired_input_layouts: Layouts = None
    input_kwarg_layouts: Mapping[str, Placement | None] = field(default_factory=dict)
    desired_input_kwarg_layouts: Mapping[str, Placement | None] = field(default_factory=dict)
    use_local_output: bool = False

    def __post_init__(self) -> None:
        self._pairs()

    def _pairs(self) -> tuple[_Pairs, _Pairs]:
        have, want = _by_place(self.input_layouts), _by_place(self.desired_input_layouts)
        named = self.input_kwarg_layouts or {}, self.desired_input_kwarg_layouts or {}
        who, as_local = "PrepareModuleInput", self.use_local_output
        return _Pairs(who, have, want, as_local), _Pairs(who, *named, as_local)

    def wrap(self, module: Module, mesh: DeviceMesh) -> Wrap:  # noqa: ARG002
        """Return what lays out inputs."""
        by_place, by_name = self._pairs()

        def around(call: Call) -> Call:
            def run(*args: Any, **kwargs: Any) -> Any:
                args = by_place.prepared_all(args, mesh)
                kwargs = {
                    key: by_name.prepared(key, x, mesh) if key in by_name.have else x for key, x in kwargs.items()
                }
                with implicit_replication():
                    return call(*args, **kwargs)

            return run

        return around

    def changes(self, module: Module) -> list[Change]:  # noqa: ARG002
        """Return a change an input."""
        return [change for pairs in self._pairs() for change in pairs.changes("input")]


@dataclass(frozen=True, kw_only=True)
class PrepareModuleOutput(ParallelStyle):
    """Lay out the outputs of a module; parameters are left to other styles.

    Parameters
    ----------
    output_layouts : Placement, or one (or None) an output
        What plain outputs are.
    desired_output_layouts : the same
        How the caller gets them.
    use_local_output : bool
        Return what this rank holds, as plain tensors. Default False, unlike torch's; see :class:`ColwiseParallel`.

    Raises
    ------
    ValueError
        If layouts do not pair; at a call, if there are more or fewer outputs than layouts.
    """

    output_layouts: Layouts
    desired_output_layouts: Layouts
    use_local_output: bool = False

    def __post_init__(self) -> None:
        self._pairs()

    def _pairs(self) -> _Pairs:
        have, want = _by_place(self.output_layouts), _by_place(self.desired_output_layouts)
        return _Pairs("PrepareModuleOutput", have, want, self.use_local_output)

    def wrap(self, module: Module, mesh: DeviceMesh) -> Wrap:  # noqa: ARG002
        """Return what lays out outputs."""
        pairs = self._pairs()

        def leave(y: Any) -> Any:
            many = isinstance(y, (tuple, list))
            prepared = pairs.prepared_all(tuple(y) if many else (y,), mesh)
            return prepared if many else prepared[0]

        return lambda call: lambda *args, **kwargs: leave(call(*args, **kwargs))

    def changes(self, module: Module) -> list[Change]:  # noqa: ARG002
        """Return a change an output."""
        return self._pairs().changes("output")


@dataclass(frozen=True, kw_only=True)
class PrepareModuleInputOutput(ParallelStyle):
    """Lay out inputs and outputs: :class:`PrepareModuleInput` and :class:`PrepareModuleOutput` in one.

    Parameters
    ----------
    use_local_input, use_local_output : bool
        Whether the module gets, and whether the caller gets, what this rank holds, as plain tensors.
    """

    input_layouts: Layouts = None
    desired_input_layouts: Layouts = None
    input_kwarg_layouts: Mapping[str, Placement | None] = field(default_factory=dict)
    desired_input_kwarg_layouts: Mapping[str, Placement | None] = field(default_factory=dict)
    use_local_input: bool = False
    output_layouts: Layouts
    desired_output_layouts: Layouts
    use_local_output: bool = False

    def __post_init__(self) -> None:
        self._parts()

    def _parts(self) -> tuple[PrepareModuleInput, PrepareModuleOutput]:
        entry = PrepareModuleInput(
            input_layouts=self.input_layouts,
            desired_input_layouts=self.desired_input_layouts,
            input_kwarg_layouts=self.input_kwarg_layouts,
            desired_input_kwarg_layouts=self.desired_input_kwarg_layouts,
            use_local_output=self.use_local_input,
        )
        leaving = PrepareModuleOutput(
            output_layouts=self.output_layouts,
            desired_output_layouts=self.desired_output_layouts,
            use_local_output=self.use_local_output,
        )
        return entry, leaving

    def wrap(self, module: Module, mesh: DeviceMesh) -> Wrap:
        """Return what lays out inputs and outputs."""
        inner, outer = (part.wrap(module, mesh) for part in self._parts())
        return lambda call: outer(inner(call))

    def changes(self, module: Module) -> list[Change]:
        """Return a change an input and an output."""
        return [change for part in self._parts() for change in part.changes(module)]
