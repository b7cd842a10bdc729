"""Ways of a user's own to run an operation on what ranks hold (torch's register_sharding)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from hpcdist.autograd import OPS, Op
from hpcdist.dtensor.dispatch import REGISTERED
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Placement
from hpcdist.dtensor.signature import Row
from hpcdist.errors import explain

__all__ = ["register_sharding"]

Ways: TypeAlias = Sequence[tuple[Sequence[Placement], Sequence[Placement]]]
F: TypeAlias = Callable[..., Ways]


def register_sharding(op: Op | str | Sequence[Op | str]) -> Callable[[F], F]:
    """Say in which ways an operation can run on one mesh axis, besides those of its signature.

    The simplest way to have one's own operation sharded is a signature: ``define(..., signature="mk,kn->mn")`` of
    ``hd.autograd``. This is for what no signature says. The decorated function gets what the operation gets, a
    ``Layout`` for each input, and the attributes; it returns pairs (placements of outputs, placements of inputs), each
    for one mesh axis. That every dimension is whole is always among the ways. An output that is cut has its sizes
    exchanged the first time.

    Parameters
    ----------
    op : Op or str, or sequence of them
        Rows of the table of operations, or their names.

    Examples
    --------
    >>> @register_sharding("cumsum")
    ... def rows(x, *, dim):
    ...     other = 1 - dim % 2
    ...     return [((Shard(other),), (Shard(other),))]
    """
    several = [op] if isinstance(op, (Op, str)) else list(op)
    names = [o if isinstance(o, str) else o.name for o in several]
    for name in names:
        if name not in OPS:
            do = "define it first: hd.autograd.define"
            raise ValueError(explain("register_sharding: operation", got=repr(name), expected="one there is", do=do))

    def register(fn: F) -> F:
        for name in names:
            REGISTERED.setdefault(name, []).append(functools.partial(_found, fn, name))
        return fn

    return register


def _found(fn: F, name: str, layouts: list[Layout], attrs: dict[str, Any]) -> list[Row]:
    return [_row(name, layouts, way) for way in fn(*layouts, **attrs)]


def _row(name: str, layouts: list[Layout], way: Any) -> Row:
    outputs, inputs = (tuple(placements) for placements in way)
    if len(inputs) != len(layouts) or not outputs or not all(isinstance(p, Placement) for p in (*outputs, *inputs)):
        expected = f"(placements of outputs, placements of the {len(layouts)} inputs)"
        raise ValueError(
            explain(f"register_sharding of {name}: what the function returned", got=way, expected=expected)
        )
    return Row(inputs, outputs)
