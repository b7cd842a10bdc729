"""Activation checkpointing: backward computes parts of the forward again, rather than have the forward keep them.

Chen et al. 2016, arXiv:1604.06174.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from hpcdist.autograd import is_grad_enabled
from hpcdist.errors import explain
from hpcdist.nn import Module, ModuleList
from hpcdist.parallel.region import Region

__all__ = [
    "apply_activation_checkpointing",
    "checkpoint",
    "checkpoint_sequential",
    "checkpoint_wrapper",
    "noop_context_fn",
]

M = TypeVar("M", bound=Module)

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def noop_context_fn() -> Contexts:
    """Return two contexts that do nothing."""
    return nullcontext(), nullcontext()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,  # noqa: ARG001 (torch's; there is one way here)
    context_fn: Callable[[], Contexts] = noop_context_fn,
    determinism_check: str = "default",
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Return ``function(*args, **kwargs)``; backward calls it again for what it would else have kept from now on.

    Kept are the tensors among the arguments, also in tuples, lists and dicts. Losses and gradients have the same bits
    as without. Random numbers of ``hpcdist`` are the same the second time, sharded parameters are gathered again, and
    running statistics are not moved twice; whatever else the function changes, it changes twice. Checkpoints may be
    nested. Where nothing is recorded it is a plain call.

    Parameters
    ----------
    function : function of anything
        Of tensors that it is given; one that it gets elsewhere stays alive.
    use_reentrant : bool, optional
        Ignored: PyTorch's two ways differ in what they support, and the one here supports what either does.
    context_fn : function ``() -> (context, context)``
        In which the function is called the first time, and again; the second one may be entered several times. See
        ``create_selective_checkpoint_contexts``.
    determinism_check : str
        ``"default"``: shapes and dtypes of saved values are the same the second time; ``"none"``: not checked.
    preserve_rng_state : bool
        False: the function draws no random numbers.

    Raises
    ------
    RuntimeError
        In backward: if the function saves something else the second time.
    """
    if determinism_check not in ("default", "none"):
        expected = "'default' or 'none'"
        raise ValueError(explain("checkpoint: determinism_check", got=determinism_check, expected=expected))
    if not is_grad_enabled():
        return function(*args, **kwargs)
    first, second = context_fn()
    region = Region(function, second, determinism_check == "default", preserve_rng_state)
    with first, region.recording(args, kwargs):
        return function(*args, **kwargs)


def checkpoint_sequential(
    functions: Sequence[Callable[[Any], Any]] | Any,
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    **options: Any,
) -> Any:
    """Return what functions one after another make of ``input``; all segments of them but the last are checkpoints.

    Parameters
    ----------
    functions : Sequential, or sequence of functions of one argument
    segments : int
        How many; the last one has the functions that are left over by equal parts.
    options
        Of :func:`checkpoint`.
    """
    steps = list(functions)
    if not 1 <= segments <= len(steps):
        expected = f"1 to {len(steps)}, the number of functions"
        raise ValueError(explain("checkpoint_sequential: segments", got=segments, expected=expected))
    size = len(steps) // segments
    for start in range(0, size * (segments - 1), size):
        part = partial(_in_turn, steps[start : start + size])
        input = checkpoint(part, input, use_reentrant=use_reentrant, **options)
    return _in_turn(steps[size * (segments - 1) :], input)


def _in_turn(functions: Sequence[Callable[[Any], Any]], x: Any) -> Any:
    for function in functions:
        x = function(x)
    return x


# ---------------------------------------------------------------- modules
@dataclass(frozen=True)
class _Checkpointed:
    """Wraps the call of a module."""

    fn: Callable[..., Any]
    options: dict[str, Any]

    def __call__(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return partial(self.fn, call, **self.options)


def checkpoint_wrapper(module: M, *, checkpoint_fn: Callable[..., Any] = checkpoint, **options: Any) -> M:
    """Make every call of a module a checkpoint, in place, and return the module: it stays the one it is.

    Parameters
    ----------
    module : Module
        Its names do not change. A sharded one is gathered again when it is called again.
    checkpoint_fn : function ``(call, *args, **kwargs)``
        What makes a call a checkpoint.
    options
        Of :func:`checkpoint`.
    """
    if not isinstance(module, Module):
        raise TypeError(explain("checkpoint_wrapper", got=type(module).__name__, expected="a module"))
    if type(module) is ModuleList:
        raise ValueError(explain("checkpoint_wrapper: a ModuleList is never called", do="wrap its items"))
    if any(isinstance(wrap, _Checkpointed) for wrap in module.around):
        do = "wrap it once: twice, it would be computed three times"
        raise ValueError(explain(f"checkpoint_wrapper: this {type(module).__name__} is wrapped already", do=do))
    module.around.append(_Checkpointed(checkpoint_fn, options))
    return module


def apply_activation_checkpointing(
    model: Module,
    checkpoint_wrapper_fn: Callable[[Module], Any] = checkpoint_wrapper,
    check_fn: Callable[[Module], bool] | None = None,
    auto_wrap_policy: Callable[[Module], bool] | None = None,
) -> None:
    """Make calls of chosen parts of a model checkpoints, in place; not of the model itself.

    Parameters
    ----------
    checkpoint_wrapper_fn : function ``(module)``
        Say ``functools.partial(checkpoint_wrapper, preserve_rng_state=False)``.
    check_fn, auto_wrap_policy : function ``(module) -> bool``
        Which parts; one of the two. A part of a chosen part may be one, too.

    Raises
    ------
    ValueError
        If no part is chosen.
    """
    chooses = check_fn or auto_wrap_policy
    if chooses is None or (check_fn and auto_wrap_policy):
        what = "apply_activation_checkpointing: check_fn, auto_wrap_policy"
        raise ValueError(explain(what, got="both" if chooses else "neither", expected="one of them"))
    parts = [part for part in dict.fromkeys(model.modules()) if part is not model and chooses(part)]
    if not parts:
        kinds = ", ".join(sorted({type(part).__name__ for part in model.modules() if part is not model}))
        raise ValueError(explain("apply_activation_checkpointing: no part was chosen", got=kinds or "no parts"))
    for part in parts:
        checkpoint_wrapper_fn(part)
