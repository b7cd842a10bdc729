"""How a module runs on the ranks of a mesh: where its parameters lie, how inputs and outputs are laid out.

A style never renames anything and changes no forward: it says how parameters are placed, and wraps the module's call.
What is communicated follows from layouts. Unlike in torch, outputs stay distributed tensors: these know the extents of
the whole, so that features and heads which ranks do not divide evenly are handed from layer to layer as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from hpcdist.comm import DeviceMesh
from hpcdist.dtensor.dispatch import implicit_replication
from hpcdist.dtensor.placements import Invariant, Placement, Shard
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.parallel.laying import laid, local_parts, moved

__all__ = ["Call", "Change", "ParallelStyle", "SequenceParallel", "Wrap"]

Call: TypeAlias = Callable[..., Any]
Wrap: TypeAlias = Callable[[Call], Call]


class Change(NamedTuple):
    """A change of layout that a style brings about at every call.

    Attributes
    ----------
    what : str
        "input" or "output".
    src, dst : Placement or None
        Before and after; None: whatever comes.
    features : int or None
        Extent of the last dimension; None: not known.
    has_gradient : bool
        Whether it is undone in backward.
    """

    what: str
    src: Placement | None
    dst: Placement | None
    features: int | None = None
    has_gradient: bool = True


class ParallelStyle:
    """Base of all styles. One's own define :meth:`placements` and, if calls change, :meth:`wrap`."""

    def placements(self, module: Module) -> dict[str, Placement]:  # noqa: ARG002
        """Return where parameters of the module itself are put, by their keys in ``slots``; others are left alone.

        Raises
        ------
        TypeError
            If this style has no rule for the module.
        ValueError
            If its sizes do not fit.
        """
        return {}

    def wrap(self, module: Module, mesh: DeviceMesh) -> Wrap | None:  # noqa: ARG002
        """Return what wraps the calls of the module, which has its distributed parameters by then; None: nothing."""
        return None

    def changes(self, module: Module) -> list[Change]:  # noqa: ARG002
        """Return the changes of layout that a call makes, for ``explain_plan``."""
        return []

    def apply(self, module: Module, device_mesh: DeviceMesh, *, src_data_rank: int | None = 0) -> Module:
        """Place the module by this style: ``parallelize_module`` with a plan of this style only.

        Collective over the mesh.
        """
        from hpcdist.parallel.tensor_parallel import parallelize_module

        return parallelize_module(module, device_mesh, self, src_data_rank=src_data_rank)


@dataclass(frozen=True, kw_only=True)
class SequenceParallel(ParallelStyle):
    """Every rank computes a part of the sequence; for norms, dropout, and all that treats positions alike.

    Parameters are on all ranks; their gradients are added up over ranks, together with others, when backward ends.

    Parameters
    ----------
    sequence_dim : int
        The dimension of inputs and outputs that is cut. A plain input is taken to be this rank's part already; None
        stays None.
    use_local_output : bool
        Return what this rank holds, as plain tensors.
    """

    sequence_dim: int = 1
    use_local_output: bool = False

    def __post_init__(self) -> None:
        Shard(self.sequence_dim)  # raises if it is no dimension

    def placements(self, module: Module) -> dict[str, Placement]:
        """Return that all is on all ranks."""
        return dict.fromkeys(module.slots, Invariant())

    def wrap(self, module: Module, mesh: DeviceMesh) -> Wrap:
        """Return what cuts all inputs along the sequence."""
        cut, name, use_local_output = Shard(self.sequence_dim), type(module).__name__, self.use_local_output

        def enter(x: Any) -> DTensor | None:
            if x is None:
                return None
            if not hasattr(type(x), "requires_grad"):
                what = f"SequenceParallel: an input of {name}"
                raise ValueError(explain(what, got=type(x).__name__, expected="a tensor"))
            return moved(laid(x, mesh, cut), cut)

        def around(call: Call) -> Call:
            def run(*args: Any, **kwargs: Any) -> Any:
                with implicit_replication():
                    y = call(*map(enter, args), **{key: enter(x) for key, x in kwargs.items()})
                return local_parts(y) if use_local_output else y

            return run

        return around

    def changes(self, module: Module) -> list[Change]:  # noqa: ARG002
        """Return that inputs and outputs are cut along the sequence."""
        cut = Shard(self.sequence_dim)
        return [Change("input", cut, cut), Change("output", cut, cut)]
