"""The module: slots for parameters, child modules, and hooks around a call. Knows nothing about ranks.

Strategies touch a module in three places: they put other tensors into its slots, they add hooks that run before and
after its forward, and they wrap its call (``around``). Names never change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import numpy as np

from hpcdist.array import Array, to_host
from hpcdist.autograd import Tensor, tensor
from hpcdist.errors import explain
from hpcdist.nn.deferral import Deferred, fill, is_deferring

__all__ = ["Module", "Parameter"]


def Parameter(data: Any, requires_grad: bool = True) -> Tensor:  # noqa: N802 (torch's name)
    """Return a tensor to be trained, of an array (which is kept), a tensor or nested sequences.

    A tensor that is assigned to a module becomes one of its parameters. Inside ``with deferred():`` it has no storage.
    """
    array = _array(data)
    return Deferred(array, requires_grad) if is_deferring() else Tensor(array, requires_grad)


class Module:
    """Base of all modules: define ``forward``, assign tensors and modules as attributes.

    Attributes
    ----------
    slots : dict of str to Tensor
        Parameters that belong to this module itself.
    buffers : dict of str to Tensor
        State that is saved but not trained.
    children : dict of str to Module
        Modules it is made of.
    pre, post : list of function ``(module) -> None``
        Run before and after ``forward``; all of ``post``, in reverse order, also when something raises before.
    around : list of function ``(call) -> call``
        Wrap a call, hooks included; the last is the outermost.
    training : bool
        Whether dropout and the like are active.
    """

    slots: dict[str, Any]  # tensors, or what behaves as one
    buffers: dict[str, Tensor]
    children: dict[str, Module]
    pre: list[Callable[[Module], None]]
    post: list[Callable[[Module], None]]
    around: list[Callable[[Callable[..., Any]], Callable[..., Any]]]
    training: bool

    def __init__(self) -> None:
        self.__dict__.update(slots={}, buffers={}, children={}, pre=[], post=[], around=[], training=True)

    def __setattr__(self, name: str, value: Any) -> None:
        if "slots" not in self.__dict__:
            raise AttributeError(explain(f"{type(self).__name__}.{name}", do="call super().__init__() first"))
        self._check_name(name, value)
        if name in self.buffers and value is not None:
            self.buffers[name] = _buffer(value)
            return
        for table in self._tables():
            table.pop(name, None)
        if isinstance(value, Module):
            self.children[name] = value
        elif _is_tensor(value) and getattr(value, "is_leaf", True):
            self.slots[name] = value
        else:
            self.__dict__[name] = value

    def _check_name(self, name: str, value: Any) -> None:
        """Refuse what would break this module, or silently take a parameter out of it."""
        belongs = isinstance(value, Module) or _is_tensor(value)
        if belongs and (name in Module.__annotations__ or hasattr(type(self), name)):
            raise AttributeError(
                explain(f"{type(self).__name__}.{name}", got="a name that modules use", do="choose another name")
            )
        if name in self.slots and not belongs and value is not None:
            raise TypeError(
                explain(
                    f"{type(self).__name__}.{name}: a parameter",
                    got=type(value).__name__,
                    expected="a tensor, or None",
                    do="wrap it: nn.Parameter(x), or write into .data",
                )
            )

    def _tables(self) -> tuple[dict[str, Any], ...]:
        return self.slots, self.buffers, self.children, self.__dict__

    def __delattr__(self, name: str) -> None:
        for table in self._tables():
            if name in table:
                del table[name]
                return
        super().__delattr__(name)

    def __getattr__(self, name: str) -> Any:
        for table in ("slots", "children", "buffers"):
            found = self.__dict__.get(table, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no parameter, module, buffer or attribute {name!r}")

    def register_buffer(self, name: str, value: Any) -> None:
        """Keep an array (or tensor, or nested sequences) that is saved with the module and not trained.

        Assigning to ``name`` later replaces it.
        """
        if name not in self.buffers and hasattr(self, name):
            raise ValueError(explain(f"register_buffer: {name!r} is an attribute already", do="choose another name"))
        self.buffers[name] = _buffer(value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's value; every module defines it."""
        raise TypeError(f"{type(self).__name__} defines no forward for {len(args) + len(kwargs)} arguments")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.through(self.forward, *args, **kwargs)

    def through(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method as ``forward`` is: hooks run, and the call is wrapped."""
        call: Callable[..., Any] = partial(self._call, method)
        for wrap in self.around:
            call = wrap(call)
        return call(*args, **kwargs)

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.pre and not self.post:
            return method(*args, **kwargs)
        with ExitStack() as stack:
            for hook in self.post:
                stack.callback(hook, self)
            for hook in self.pre:
                hook(self)
            return method(*args, **kwargs)

    # ---- walking the tree
    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (name, module) of this module, whose name is "", and of all below it."""
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below it."""
        return (module for _, module in self.named_modules())

    def named_slots(self) -> Iterator[tuple[str, Module, str]]:
        """Yield (name, owner, key) of every parameter slot; a tied parameter has several."""
        for prefix, module in self.named_modules():
            for key in module.slots:
                yield f"{prefix}.{key}" if prefix else key, module, key

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, parameter), a tied one under its first name only."""
        seen: set[int] = set()
        for name, owner, key in self.named_slots():
            parameter = owner.slots[key]
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def parameters(self) -> Iterator[Tensor]:
        """Yield every parameter once."""
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, buffer)."""
        for prefix, module in self.named_modules():
            for key, buffer in module.buffers.items():
                yield f"{prefix}.{key}" if prefix else key, buffer

    # ---- state
    def state_dict(self) -> dict[str, Array]:
        """Return the arrays of parameters and buffers by name: the ones in use, not copies."""
        return {name: t.data for name, t in self._named_tensors()}

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.named_parameters()
        yield from self.named_buffers()

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Copy values into parameters and buffers; a deferred parameter gets its storage here.

        Parameters
        ----------
        state : mapping of str to array
            Of the same shapes; cast to the dtype that is there, which must be of its kind.
        strict : bool
            Whether a name that is missing or unknown is an error.

        Raises
        ------
        ValueError
            Before anything is changed.
        """
        own = {n: t if isinstance(t, Deferred) else t.data for n, t in self._named_tensors()}
        missing, unknown = [n for n in own if n not in state], [n for n in state if n not in own]
        if strict and (missing or unknown):
            raise ValueError(explain("load_state_dict: names do not match", got=f"unknown {unknown}", expected=missing))
        values = {name: _array(state[name]) for name in own if name in state}
        shared = any(hasattr(t, "placements") for _, t in self._named_tensors())
        for name, value in values.items():
            there = own[name]
            if value.shape != there.shape or not np.can_cast(value.dtype, there.dtype, "same_kind"):
                got, expected = (f"{a.shape} {a.dtype}" for a in (value, there))
                do = "whole arrays go into a distributed model by hd.parallel.load_full_state_dict" if shared else None
                raise ValueError(explain(f"load_state_dict: {name}", got=got, expected=expected, do=do))
        for name, value in values.items():
            there = own[name]
            if not isinstance(there, Deferred):
                there[...] = value
        fill(self, lambda name, p: np.array(to_host(values[name]), p.dtype) if name in values else None)

    def train(self, mode: bool = True) -> Self:
        """Make dropout and the like active in this module and all below it."""
        for module in self.modules():
            module.__dict__["training"] = mode
        return self

    def eval(self) -> Self:
        """Make dropout and the like inactive."""
        return self.train(False)

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call ``fn`` with every module below this one, then with this one."""
        for child in self.children.values():
            child.apply(fn)
        fn(self)
        return self

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for parameter in self.parameters():
            parameter.grad = None

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Say whether the parameters are trained."""
        for name, parameter in self.named_parameters():
            if requires_grad and parameter.dtype.kind not in "fcV":
                raise TypeError(explain(f"requires_grad_: {name}", got=parameter.dtype, expected="a floating dtype"))
            parameter.requires_grad = requires_grad
        return self

    def to(self, dtype: Any) -> Self:
        """Cast floating parameters, their gradients, and buffers to a floating dtype."""
        if np.dtype(dtype).kind not in "fV":
            raise TypeError(explain("Module.to", got=dtype, expected="a floating dtype"))
        for name, t in self._named_tensors():
            if t.home is not None and t.dtype != dtype:
                raise ValueError(explain(f"Module.to: {name} is replicated", do="cast the module before"))
            if isinstance(t, Deferred):
                t.cast(dtype if t.dtype.kind in "fV" else t.dtype)
            elif t.dtype.kind in "fV":
                t.data = t.data.astype(dtype)
                t.grad = None if t.grad is None else t.grad.astype(dtype)
        return self

    def __repr__(self) -> str:
        own = [f"{key}: {tuple(t.shape)} {t.dtype}" for key, t in self.slots.items()]
        inside = [f"{key}: {child!r}".replace("\n", "\n  ") for key, child in self.children.items()]
        body = "".join(f"\n  {line}" for line in own + inside)
        return f"{type(self).__name__}({body}\n)" if body else f"{type(self).__name__}()"


def _array(value: Any) -> Array:
    """Return an array as it is, that of a tensor, or that of nested sequences."""
    array = value.data if isinstance(value, Tensor) else value if hasattr(value, "dtype") else tensor(value).data
    if array.dtype.kind not in "biufcV":
        raise TypeError(explain("a parameter or buffer", got=type(value).__name__, expected="an array of numbers"))
    result: Array = array
    return result


def _buffer(value: Any) -> Any:
    return value.detach() if _is_tensor(value) else Tensor(_array(value))


def _is_tensor(value: Any) -> bool:
    """Say whether ``value`` is a tensor, or behaves as one in the graph."""
    return isinstance(value, Tensor) or hasattr(type(value), "__apply__")
