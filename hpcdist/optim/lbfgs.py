"""L-BFGS: Nocedal and Wright 2006, algorithms 7.4 and 7.5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.kernels.precision import wide
from hpcdist.optim.clip import whole_gradient
from hpcdist.optim.line_search import Point, strong_wolfe
from hpcdist.optim.optimizer import Optimizer, Parameters, flat_values, real_flat

__all__ = ["LBFGS"]

LEAST_CURVATURE = 1e-10
_NUMBERS = ("n_iter", "func_evals", "step", "scale")


@dataclass
class _Memory:
    """What one iteration leaves to the next: numbers, and vectors of all parameters side by side."""

    n_iter: int = 0
    func_evals: int = 0
    step: float = 0.0
    scale: float = 1.0
    direction: Array | None = None
    gradient: Array | None = None
    moves: list[Array] = field(default_factory=list)
    changes: list[Array] = field(default_factory=list)

    def learn(self, gradient: Array, history_size: int) -> None:
        """Remember the last move, and how much the gradient changed over it."""
        assert self.direction is not None
        assert self.gradient is not None
        change, move = gradient - self.gradient, self.direction * self.step
        curvature = float(change @ move)
        if curvature > LEAST_CURVATURE:
            self.moves = [*self.moves, move][-history_size:]
            self.changes = [*self.changes, change][-history_size:]
            self.scale = curvature / float(change @ change)

    def descent(self, gradient: Array) -> Array:
        """Return minus the approximate inverse Hessian times the gradient."""
        q = -gradient
        pairs = [(s, y, 1.0 / float(y @ s)) for s, y in zip(self.moves, self.changes, strict=True)]
        weights = []
        for s, y, rho in reversed(pairs):
            weights.append(rho * float(s @ q))
            q = q - weights[-1] * y
        q = q * self.scale
        for (s, y, rho), weight in zip(pairs, reversed(weights), strict=True):
            q = q + (weight - rho * float(y @ q)) * s
        return q


class LBFGS(Optimizer):
    """A quasi-Newton method for losses without noise; one group of parameters.

    ``step`` takes a closure, which it calls several times. Every rank must compute the same loss and gradients in it,
    those of the whole batch.

    Parameters
    ----------
    params : see :data:`hpcdist.optim.optimizer.Parameters`
    lr : float
        Length of a step in units of the direction; first trial of the line search.
    max_iter, max_eval : int
        Iterations, and calls of the closure, a ``step``; the second is 1.25 times the first by default.
    tolerance_grad, tolerance_change : float
        Stop when no element of the gradient is larger; when steps or the loss change by less.
    history_size : int
        Steps that are remembered.
    line_search_fn : str, optional
        ``"strong_wolfe"``, or None: steps of length ``lr``.
    """

    _needs_whole: ClassVar[bool] = True
    _kept: ClassVar[frozenset[str] | None] = frozenset({*_NUMBERS, "direction", "gradient", "move_", "change_"})

    def __init__(
        self,
        params: Parameters,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if max_iter < 1 or history_size < 1 or line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(
                explain(
                    "LBFGS: options",
                    got=f"max_iter {max_iter}, history_size {history_size}, line_search_fn {line_search_fn!r}",
                    expected="at least 1, at least 1, 'strong_wolfe' or None",
                )
            )
        super().__init__(
            params,
            lr=lr,
            max_iter=max_iter,
            max_eval=max_iter * 5 // 4 if max_eval is None else max_eval,
            tolerance_grad=tolerance_grad,
            tolerance_change=tolerance_change,
            history_size=history_size,
            line_search_fn=line_search_fn,
        )
        self._memory = _Memory()

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        if self.param_groups:
            raise ValueError(explain("LBFGS: its parameters make one vector", do="pass them as one group"))
        super().add_param_group(group)

    # ---- all parameters as one vector
    @property
    def _named(self) -> list[tuple[str, Tensor]]:
        group = self.param_groups[0]
        return list(zip(group["names"], group["params"], strict=True))

    def _flat_gradient(self) -> Array:
        pieces = [self._flat_gradient_of(p) for _, p in self._named]
        return namespace(pieces[0]).concatenate(pieces)

    def _flat_gradient_of(self, parameter: Tensor) -> Array:
        flat = wide(real_flat("LBFGS", parameter))
        if parameter.grad is None:
            return namespace(flat).zeros_like(flat)
        return whole_gradient(parameter).astype(flat.dtype) * self.grad_scale

    def _move_to(self, origin: list[Array], direction: Array, step: float) -> None:
        start = 0
        for (_, parameter), before in zip(self._named, origin, strict=True):
            flat = flat_values(parameter)
            flat[...] = before + step * direction[start : start + flat.size]
            start += flat.size

    # ---- a step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take up to ``max_iter`` iterations; return the loss before the first.

        Parameters
        ----------
        closure : function ``() -> loss``
            Forgets gradients, computes the loss and its gradients.
        """
        if closure is None:
            raise TypeError(explain("LBFGS.step: closure", got=None, do="pass a function that computes the loss"))
        for hook in self.pre:
            hook()
        loss = closure()
        self._iterate(closure, float(loss))
        self.grad_scale = 1.0
        self._keep()
        for hook in self.post:
            hook()
        return loss

    def _iterate(self, closure: Callable[[], Any], loss: float) -> None:
        group, memory = self.param_groups[0], self._memory
        gradient, evaluations = self._flat_gradient(), 1
        memory.func_evals += 1
        for k in range(1, group["max_iter"] + 1):
            if _largest(gradient) <= group["tolerance_grad"]:
                return
            direction = self._next_direction(gradient)
            slope = float(gradient @ direction)
            memory.direction, memory.gradient = direction, gradient
            memory.step = group["lr"] * (min(1.0, 1.0 / float(abs(gradient).sum())) if memory.n_iter == 1 else 1.0)
            if slope > -group["tolerance_change"]:
                return
            start = Point(0.0, loss, gradient, slope)
            end, count = self._along(closure, start, direction, last=k == group["max_iter"])
            memory.step, loss, gradient = end.step, end.loss, end.gradient
            memory.func_evals += count
            evaluations += count
            if evaluations >= group["max_eval"] or self._settled(start, end, count):
                return

    def _next_direction(self, gradient: Array) -> Array:
        memory = self._memory
        memory.n_iter += 1
        if memory.n_iter == 1:
            return -gradient
        memory.learn(gradient, self.param_groups[0]["history_size"])
        return memory.descent(gradient)

    def _along(self, closure: Callable[[], Any], start: Point, direction: Array, *, last: bool) -> tuple[Point, int]:
        """Move along the direction; return where to, and how many times the closure was called."""
        origin = [p.data.reshape(-1).copy() for _, p in self._named]
        group, step = self.param_groups[0], self._memory.step

        def at(step: float) -> Point:
            self._move_to(origin, direction, step)
            loss = float(closure())
            gradient = self._flat_gradient()
            return Point(step, loss, gradient, float(gradient @ direction))

        if group["line_search_fn"] is None:
            if not last:
                return at(step), 1
            self._move_to(origin, direction, step)
            return Point(step, start.loss, start.gradient, start.slope), 0
        end, count = strong_wolfe(at, start, step, group["tolerance_change"] / (_largest(direction) or 1.0))
        self._move_to(origin, direction, end.step)
        return end, count

    def _settled(self, start: Point, end: Point, count: int) -> bool:
        tolerance = self.param_groups[0]["tolerance_change"]
        move = _largest(self._memory.direction) * abs(end.step)
        return bool(count) and (move <= tolerance or abs(end.loss - start.loss) < tolerance)

    # ---- state, cut at the borders of parameters
    def _keep(self) -> None:
        """Put views of the vectors, and the numbers, where state goes by names."""
        memory = self._memory
        numbers = {key: getattr(memory, key) for key in _NUMBERS}
        vectors = {f"move_{i}": v for i, v in enumerate(memory.moves)}
        vectors |= {f"change_{i}": v for i, v in enumerate(memory.changes)}
        if memory.direction is not None and memory.gradient is not None:
            vectors |= {"direction": memory.direction, "gradient": memory.gradient}
        start = 0
        for name, parameter in self._named:
            cut = slice(start, start + parameter.size)
            self.state[name] = numbers | {key: v[cut] for key, v in vectors.items()}
            start += parameter.size

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned; anew if it lacks a parameter: directions have all of them."""
        super().load_state_dict(state)
        pieces = [self.state.get(name, {}) for name, _ in self._named]
        if not all(pieces):
            self.state, self._memory = {}, _Memory()
            return
        first = pieces[0]
        count = sum(key.startswith("move_") for key in first)

        def joined(key: str) -> Array:
            whole: Array = namespace(first[key]).concatenate([piece[key] for piece in pieces])
            return whole

        self._memory = _Memory(
            **{key: first[key] for key in _NUMBERS},
            direction=joined("direction") if "direction" in first else None,
            gradient=joined("gradient") if "gradient" in first else None,
            moves=[joined(f"move_{i}") for i in range(count)],
            changes=[joined(f"change_{i}") for i in range(count)],
        )


def _largest(x: Array | None) -> float:
    """Return the largest magnitude of an element."""
    return float(abs(x).max()) if x is not None and x.size else 0.0
