"""A unit: parameters that are gathered before a module's forward and whose gradients are reduced together.

Strategies differ in the exchange: how gradients meet. The gather operation is the seam: its output is what the module
computes with, its ``home`` says where gradients are collected, and its vjp runs when all of them are there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hpcdist.array import Array
from hpcdist.autograd import Tensor, apply, define, empty
from hpcdist.autograd.second import second
from hpcdist.autograd.tape import TAPE, is_collecting
from hpcdist.dtensor import DTensor
from hpcdist.dtensor.tensor import local_of
from hpcdist.nn import Module

__all__ = ["Exchange", "Unit", "claim", "uses_ahead"]


class Exchange(Protocol):
    """How the parameters of a unit are gathered and its gradients reduced."""

    def gather(self, parameters: Sequence[Tensor]) -> tuple[Array, ...]:
        """Return the whole arrays of parameters."""

    def home(self, parameter: Tensor) -> tuple[Array, float]:
        """Return the memory in which the gradient of a parameter is collected, and how (as ``Into.place``)."""

    def reduce(self, unit: Unit) -> None:
        """Take note that a backward has come through one use of this unit."""

    def missed(self) -> None:
        """Take note that a backward has failed before it came through a use of a unit."""


class Unit:
    """Parameters that one module, or what lies below it, needs in its forward.

    Parameters
    ----------
    module : Module
        Whose forward needs the parameters.
    slots : list of (Module, str)
        Where they are put; those that share a tensor (tied) are gathered once. Of distributed tensors it is the parts
        that this rank holds. What is frozen stays where it is.
    """

    def __init__(self, module: Module, slots: list[tuple[Module, str]], exchange: Exchange) -> None:
        self.slots, self.exchange = slots, exchange
        self.resting: list[Any] = [owner.slots[key] for owner, key in slots]
        self.parameters = list({id(p): p for p in map(local_of, self.resting)}.values())
        self.module = module
        module.pre.append(self._fill)
        module.post.append(self._empty)

    def _fill(self, _: Module) -> None:
        trained = tuple(p for p in self.parameters if p.requires_grad)
        if not trained:
            return
        whole = dict(zip(map(id, trained), apply(GATHER, *trained, use=_Use(self, trained)), strict=True))
        for (owner, key), p in zip(self.slots, self.resting, strict=True):
            shown = whole.get(id(local_of(p)))
            if shown is not None:
                owner.slots[key] = DTensor(shown, p.layout) if isinstance(p, DTensor) else shown

    def _empty(self, _: Module) -> None:
        for (owner, key), parameter in zip(self.slots, self.resting, strict=True):
            owner.slots[key] = parameter

    def detach(self) -> None:
        """Leave the module alone from now on."""
        self.module.pre.remove(self._fill)
        self.module.post.remove(self._empty)


def claim(root: Module, modules: Sequence[Module]) -> list[tuple[Module, list[tuple[Module, str]]]]:
    """Deal the slots of parameters below ``root`` that can be trained out to ``modules``.

    ``root`` comes first and takes the rest. A module inside another one comes after it. A parameter that several of
    them use (tied) goes to ``root``, whose forward encloses all uses. Modules that get none are left out.
    """
    region = {id(owner): i for i, m in enumerate(modules, 1) for owner in m.modules()}
    users: dict[int, set[int]] = defaultdict(set)
    slots = [(owner, key) for _, owner, key in root.named_slots() if owner.slots[key].dtype.kind in "fcV"]
    for owner, key in slots:
        users[id(owner.slots[key])].add(region.get(id(owner), 0))
    dealt: list[list[tuple[Module, str]]] = [[] for _ in range(len(modules) + 1)]
    for owner, key in slots:
        of_one = users[id(owner.slots[key])]
        dealt[next(iter(of_one)) if len(of_one) == 1 else 0].append((owner, key))
    return [(m, mine) for m, mine in zip([root, *modules], dealt, strict=True) if mine]


@dataclass(frozen=True, eq=False)
class _Use:
    """One gathering of a unit: the parameters that were trained then."""

    unit: Unit
    parameters: tuple[Tensor, ...]

    def home(self, slot: int) -> tuple[Array, float]:
        parameter = self.parameters[slot]
        if is_collecting():
            return self.unit.exchange.home(parameter)
        return empty(parameter.shape, parameter.dtype, parameter.data), 0.0


def uses_ahead() -> Counter[Unit]:
    """Return how often backward, where it runs, will yet come through each unit."""
    nodes = (node for replay in TAPE.replays for node in replay.nodes_ahead() if node.op is GATHER)
    return Counter(node.attrs["use"].unit for node in nodes)


def _gather(*shards: Array, use: _Use) -> tuple[tuple[Array, ...], tuple[()]]:  # noqa: ARG001 (the exchange has them)
    return use.unit.exchange.gather(use.parameters), ()


def _gather_vjp(into: Any, grads: Any, saved: Any, use: _Use) -> None:  # noqa: ARG001 (nothing is saved)
    if is_collecting():
        use.unit.exchange.reduce(use.unit)
        return
    for target, gradient in zip(into, grads, strict=True):  # of autograd.grad: those of this rank alone
        if target is not None and gradient is not None:
            target.give(gradient)


def _missed(use: _Use) -> None:
    if is_collecting():
        use.unit.exchange.missed()


@second("gather")
def _gather_second(grads: Any, saved: Any, shapes: Any, use: _Use) -> Any:  # noqa: ARG001 (each parameter is itself)
    return grads


GATHER = define("gather", _gather, _gather_vjp, home=lambda slot, use: use.home(slot), missed=_missed)
