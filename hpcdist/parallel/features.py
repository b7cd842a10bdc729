"""Styles of layers whose features, or whose vocabulary, are dealt out over ranks: column- and row-wise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcdist.autograd.operand import wrapped
from hpcdist.comm import DeviceMesh
from hpcdist.dtensor.dispatch import implicit_replication
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain
from hpcdist.nn import Embedding, Linear, Module
from hpcdist.parallel.laying import check_layout, invariant, laid, moved, whole
from hpcdist.parallel.style import Call, Change, ParallelStyle, Wrap

__all__ = ["ColwiseParallel", "RowwiseParallel"]


@dataclass(frozen=True, kw_only=True)
class _Layer(ParallelStyle):
    """What column- and row-wise styles share.

    Attributes
    ----------
    input_layouts, output_layouts : Placement, optional
        How the input comes (a plain array: what it is taken to be), and how the output shall be.
    use_local_output : bool
        Return what this rank holds, as a plain tensor.
    heads : int, optional
        Features are cut at whole heads only: there are so many.
    """

    input_layouts: Placement | None = None
    output_layouts: Placement | None = None
    use_local_output: bool = False
    heads: int | None = None

    def __post_init__(self) -> None:
        who = type(self).__name__
        check_layout(f"{who}: input_layouts", self.input_layouts)
        check_layout(f"{who}: output_layouts", self.output_layouts)
        if self.heads is not None and not (type(self.heads) is int and self.heads > 0):
            raise ValueError(explain(f"{who}: heads", got=repr(self.heads), expected="a number above 0"))

    def wrap(self, module: Module, mesh: DeviceMesh) -> Wrap:
        """Return what lays out the first argument and the result."""
        enter, leave = self._enter(module, mesh), self._leave

        def around(call: Call) -> Call:
            def run(*args: Any, **kwargs: Any) -> Any:
                with implicit_replication():
                    if args:
                        args = (enter(args[0]), *args[1:])
                    else:
                        kwargs = {key: enter(x) if i == 0 else x for i, (key, x) in enumerate(kwargs.items())}
                    return leave(call(*args, **kwargs))

            return run

        return around

    def _enter(self, module: Module, mesh: DeviceMesh) -> Callable[[Any], DTensor]:
        raise TypeError(f"{type(self).__name__} has no rule for inputs of {type(module).__name__} on {mesh}")

    def _leave(self, y: DTensor) -> Any:
        raise TypeError(f"{type(self).__name__} has no rule for outputs on {y.device_mesh}")

    def _units(self, what: str, features: int, sections: tuple[int, ...] = ()) -> int | tuple[int, ...]:
        """Return how many features stay together: those of a head, in every section."""
        if self.heads is None:
            return 1
        extents = sections or (features,)
        if any(extent % self.heads for extent in extents):
            got = f"{what} {extents[0] if len(extents) == 1 else extents}"
            raise ValueError(
                explain(f"{type(self).__name__}: heads", got=got, expected=f"a multiple of {self.heads} heads")
            )
        units = tuple(extent // self.heads for extent in extents)
        return units if sections else units[0]


@dataclass(frozen=True, kw_only=True)
class ColwiseParallel(_Layer):
    """Every rank computes a part of the output features: rows of a Linear's weight, columns of an Embedding's.

    The input is used whole: one that is cut is gathered; one that all ranks have costs nothing, its gradient is added
    up over ranks. The output is cut along its last dimension, unless ``output_layouts`` says otherwise.

    Parameters
    ----------
    input_layouts : Placement, optional
        What a plain input is; default: the whole, the same on every rank.
    output_layouts : Placement, optional
        Default: Shard(-1), cut as the weight is. Replicate and Invariant: gathered.
    use_local_output : bool
        Return what this rank holds, as a plain tensor. Default False, unlike torch's: the next layer needs the extents
        of the whole where ranks do not divide them.
    sections : int or tuple of int, optional
        The features are that many equal parts, or parts of these extents, each of which is cut for itself: fused gate
        and up (2), or queries, keys and values one after another.
    heads : int, optional
        Cut at whole heads: features (of every section) are those of so many heads or groups of heads, and a rank may
        hold none.

    Raises
    ------
    TypeError
        In a plan, for a module that is no Linear or Embedding.
    """

    sections: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sections is None:
            return
        extents = self.sections if isinstance(self.sections, tuple) else (self.sections,)
        if not extents or not all(type(n) is int and n > 0 for n in extents):
            expected = "a number above 0, or extents above 0"
            raise ValueError(explain("ColwiseParallel: sections", got=repr(self.sections), expected=expected))

    def placements(self, module: Module) -> dict[str, Placement]:
        """Return a cut of the output features."""
        features, dim = _output_features("ColwiseParallel", module)
        cut = self._cut(features)
        found: dict[str, Placement] = {"weight": Shard(dim, cut.unit, cut.sections)}
        if "bias" in module.slots:
            found["bias"] = cut
        return found

    def _cut(self, features: int) -> Shard:
        """Return the cut of ``features`` as dimension 0."""
        sections = self._sections(features)
        return Shard(0, self._units("features", features, sections), sections)

    def _sections(self, features: int) -> tuple[int, ...]:
        if self.sections is None:
            return ()
        found = (features // self.sections,) * self.sections if isinstance(self.sections, int) else self.sections
        if sum(found) != features:
            expected = f"what adds up to the {features} features"
            raise ValueError(explain("ColwiseParallel: sections", got=self.sections, expected=expected))
        return found

    def _enter(self, module: Module, mesh: DeviceMesh) -> Callable[[Any], DTensor]:  # noqa: ARG002
        return lambda x: whole(laid(x, mesh, self.input_layouts or Invariant()))

    def _leave(self, y: DTensor) -> Any:
        return _left(y, self.output_layouts, self.use_local_output)

    def changes(self, module: Module) -> list[Change]:
        """Return the use of the input as a whole, and what ``output_layouts`` asks for."""
        features, _ = _output_features("ColwiseParallel", module)
        before = self.input_layouts if isinstance(self.input_layouts, (Shard, Partial)) else Invariant()
        inside = _input_features(module)
        changes = [Change("input", before, Replicate(), inside, has_gradient=isinstance(module, Linear))]
        if (after := self.output_layouts) is None or after.is_shard(-1):
            return [*changes, Change("output", Shard(-1), Shard(-1), features)]
        return [*changes, Change("output", Shard(-1), invariant(after), features)]


@dataclass(frozen=True, kw_only=True)
class RowwiseParallel(_Layer):
    """Every rank computes with a part of the input features, or of the vocabulary, and results are added up over ranks.

    A Linear's weight is cut along its columns, and its bias is on all ranks; an Embedding's rows are dealt out.

    Parameters
    ----------
    input_layouts : Placement, optional
        What a plain input is; default: Shard(-1) for a Linear, cut as its weight is; the whole for an Embedding.
    output_layouts : Placement, optional
        Default: the whole on every rank, by an all-reduce. A Shard, by a reduce-scatter: Shard(1) for the sequence.
    use_local_output : bool
        Return what this rank holds, as a plain tensor. Default False, unlike torch's; see :class:`ColwiseParallel`.
    heads : int, optional
        Features are cut at whole heads: there are so many.

    Raises
    ------
    TypeError
        In a plan, for a module that is no Linear or Embedding.
    """

    def placements(self, module: Module) -> dict[str, Placement]:
        """Return a cut of the input features."""
        _output_features("RowwiseParallel", module)
        found: dict[str, Placement] = {"weight": self._cut(module, 1 if isinstance(module, Linear) else 0)}
        if "bias" in module.slots:
            found["bias"] = Invariant()
        return found

    def _cut(self, module: Module, dim: int) -> Shard:
        return Shard(dim, self._units("input features", _input_features(module)))

    def _enter(self, module: Module, mesh: DeviceMesh) -> Callable[[Any], DTensor]:
        given = self.input_layouts
        if not isinstance(module, Linear):
            return lambda x: whole(laid(x, mesh, given or Invariant()))
        features, cut = _input_features(module), self._cut(module, -1)
        as_weight = given is None or given.is_shard(-1)

        def enter(x: Any) -> DTensor:
            if not isinstance(x, DTensor) and as_weight:
                x = wrapped(x)
                return DTensor(x, Layout.of(mesh, [cut], (*x.shape[:-1], features)))
            return moved(laid(x, mesh, given or cut), cut)

        return enter

    def _leave(self, y: DTensor) -> Any:
        return _left(y, self.output_layouts or Invariant(), self.use_local_output)

    def changes(self, module: Module) -> list[Change]:
        """Return the sum over ranks."""
        features, _ = _output_features("RowwiseParallel", module)
        output = Change("output", Partial(), invariant(self.output_layouts or Invariant()), features)
        if not isinstance(module, Linear):
            return [Change("input", self.input_layouts or Invariant(), Replicate(), 1, has_gradient=False), output]
        return [Change("input", self.input_layouts or Shard(-1), Shard(-1), _input_features(module)), output]


def _left(y: DTensor, layout: Placement | None, use_local_output: bool) -> Any:
    """Return an output as asked for; along the dimension that is cut already, cuts may differ in their units."""
    have = y.placements[0]
    same = isinstance(layout, Shard) and isinstance(have, Shard) and layout.counted(y.ndim).dim == have.dim
    if layout is not None and not same:
        y = moved(y, invariant(layout))
    return y.to_local() if use_local_output else y


def _output_features(style: str, module: Module) -> tuple[int, int]:
    """Return how many features come out of a layer, and which dimension of its weight they are."""
    if not isinstance(module, (Linear, Embedding)):
        do = "list the layers inside of it; or write a ParallelStyle for it"
        raise TypeError(explain(f"{style}: module", got=type(module).__name__, expected="Linear or Embedding", do=do))
    dim = 0 if isinstance(module, Linear) else 1
    return module.slots["weight"].shape[dim], dim


def _input_features(module: Module) -> int:
    """Return the extent of the other dimension: input features, or the vocabulary."""
    return module.slots["weight"].shape[1 if isinstance(module, Linear) else 0]
