"""A unit: parameters that are gathered before a module's forward and whose gradients are reduced together.

Strategies differ in the exchange: where parameters rest, and how gradients meet. The gather operation is the seam:
its output is what the module computes with, its ``home`` says where gradients are collected, and its vjp runs when
all of them are there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

from hpcdist.array import Array
from hpcdist.autograd import apply, define
from hpcdist.dtensor import DTensor
from hpcdist.dtensor.tensor import local_of
from hpcdist.nn import Module

__all__ = ["Exchange", "Unit", "claim"]


class Exchange(Protocol):
    """How the parameters of a unit are gathered and its gradients reduced."""

    def gather(self, unit: Unit) -> tuple[Array, ...]:
        """Return the whole arrays of the unit's parameters."""

    def home(self, unit: Unit, slot: int) -> tuple[Array, float]:
        """Return the memory in which the gradient of parameter ``slot`` is collected, and how (as ``Into.place``)."""

    def reduce(self, unit: Unit) -> None:
        """Take note that a backward through this unit is complete."""


class Unit:
    """Parameters that one module, or what lies below it, needs in its forward.

    Parameters
    ----------
    module : Module
        Whose forward needs the parameters.
    slots : list of (Module, str)
        Where they are put; those that share a tensor (tied) are gathered once. Of distributed tensors it is the parts
        that this rank holds.
    """

    def __init__(self, module: Module, slots: list[tuple[Module, str]], exchange: Exchange) -> None:
        self.slots, self.exchange = slots, exchange
        self.resting: list[Any] = [owner.slots[key] for owner, key in slots]
        mine = [local_of(p) for p in self.resting]
        self.parameters = list({id(p): p for p in mine}.values())
        position = {id(p): i for i, p in enumerate(self.parameters)}
        self.index = [position[id(p)] for p in mine]
        self.gathered = 0
        module.pre.append(self._fill)
        module.post.append(self._empty)

    def _fill(self, _: Module) -> None:
        whole = apply(GATHER, *self.parameters, unit=self)
        self.gathered += whole[0].requires_grad
        for (owner, key), p, i in zip(self.slots, self.resting, self.index, strict=True):
            owner.slots[key] = DTensor(whole[i], p.layout) if isinstance(p, DTensor) else whole[i]

    def _empty(self, _: Module) -> None:
        for (owner, key), parameter in zip(self.slots, self.resting, strict=True):
            owner.slots[key] = parameter


def claim(root: Module, modules: Sequence[Module]) -> list[tuple[Module, list[tuple[Module, str]]]]:
    """Deal the slots of trained parameters below ``root`` out to ``modules``; ``root`` comes first and takes the rest.

    A module inside another one comes after it. A parameter that several of them use (tied) goes to ``root``, whose
    forward encloses all uses. Modules that get none are left out.
    """
    region = {id(owner): i for i, m in enumerate(modules, 1) for owner in m.modules()}
    users: dict[int, set[int]] = defaultdict(set)
    slots = [(owner, key) for _, owner, key in root.named_slots() if owner.slots[key].requires_grad]
    for owner, key in slots:
        users[id(owner.slots[key])].add(region.get(id(owner), 0))
    dealt: list[list[tuple[Module, str]]] = [[] for _ in range(len(modules) + 1)]
    for owner, key in slots:
        of_one = users[id(owner.slots[key])]
        dealt[next(iter(of_one)) if len(of_one) == 1 else 0].append((owner, key))
    return [(m, mine) for m, mine in zip([root, *modules], dealt, strict=True) if mine]


def _gather(*shards: Array, unit: Unit) -> tuple[tuple[Array, ...], tuple[()]]:  # noqa: ARG001 (the exchange has them)
    return unit.exchange.gather(unit), ()


def _gather_vjp(into: Any, grads: Any, saved: Any, unit: Unit) -> None:  # noqa: ARG001 (the exchange keeps the gradients)
    unit.exchange.reduce(unit)


GATHER = define("gather", _gather, _gather_vjp, home=lambda slot, unit: unit.exchange.home(unit, slot))
