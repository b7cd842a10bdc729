"""What PowerSGD keeps between steps: errors, and where the next iteration begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace, to_host
from hpcdist.comm import Communicator
from hpcdist.errors import explain
from hpcdist.parallel.comm_hooks.grad_bucket import GradBucket

__all__ = ["PowerSGDState"]


class PowerSGDState:
    """What :func:`powerSGD_hook` keeps between steps; a model has one of its own.

    Parameters
    ----------
    process_group : Communicator, optional
        The ranks; default: those of the model.
    matrix_approximation_rank : int
        r: columns of P and Q; at most as many as the matrix has.
    start_powerSGD_iter : int
        Steps in which gradients travel whole before: their low-rank parts are poor then. 2 at least, unless both
        ``use_error_feedback`` and ``warm_start`` are False.
    min_compression_rate : float
        A matrix travels whole unless it has more than so many times the numbers of P and Q; vectors do always.
    use_error_feedback, warm_start : bool
        Whether what a step leaves out is added to the next gradient, and whether its Q is where the next begins.
    orthogonalization_epsilon : float
        0: by QR. Else by Gram-Schmidt, with this added to the length of each column that is divided by.
    random_seed : int
        Q begins as ``default_rng([seed, step, bucket, matrix]).standard_normal((m, r))``, the same on all ranks.

    Attributes
    ----------
    iter : int
        Steps so far.

    Raises
    ------
    ValueError
        For values that make no sense.
    """

    def __init__(
        self,
        process_group: Communicator | None = None,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
    ) -> None:
        if matrix_approximation_rank < 1:
            raise ValueError(explain("PowerSGDState: rank", got=matrix_approximation_rank, expected="1 or more"))
        if start_powerSGD_iter <= 1 and (use_error_feedback or warm_start):
            do = "let the first two steps be whole, or turn use_error_feedback and warm_start off"
            raise ValueError(explain("PowerSGDState: start_powerSGD_iter", got=start_powerSGD_iter, expected=2, do=do))
        if not (min_compression_rate > 0 and orthogonalization_epsilon >= 0):
            got = f"{min_compression_rate}, {orthogonalization_epsilon}"
            what = "PowerSGDState: min_compression_rate, orthogonalization_epsilon"
            raise ValueError(explain(what, got=got, expected="above 0, and not below 0"))
        self.process_group, self.rank, self.start = process_group, matrix_approximation_rank, start_powerSGD_iter
        self.min_compression_rate, self.epsilon, self.seed = (
            min_compression_rate,
            orthogonalization_epsilon,
            random_seed,
        )
        self.use_error_feedback, self.warm_start = use_error_feedback, warm_start
        self.iter = 0
        self._errors: dict[int, Array] = {}
        self._qs: dict[int, list[Array]] = {}

    # ---- what one step leaves to the next
    def error(self, bucket: GradBucket) -> Array | float:
        """Return what was left out of the gradients of a bucket, 0 at first; other buckets begin anew."""
        error = self._errors.get(bucket.index())
        return error if error is not None and error.shape == bucket.buffer().shape else 0.0

    def starts_of(self, bucket: GradBucket, matrices: Sequence[Array]) -> list[Array]:
        """Return Q of each matrix."""
        known = self._qs.get(bucket.index(), []) if self.warm_start else []
        shapes = [(matrix.shape[1], min(self.rank, *matrix.shape)) for matrix in matrices]
        if [q.shape for q in known] != shapes:
            known = [self._drawn(bucket.index(), i, shape, matrices[i]) for i, shape in enumerate(shapes)]
        return known

    def _drawn(self, index: int, i: int, shape: tuple[int, int], like: Array) -> Array:
        drawn = np.random.default_rng([self.seed, self.iter, index, i]).standard_normal(shape)
        values: Array = namespace(like).asarray(drawn.astype(like.dtype))
        return values

    def is_thin(self, matrix: Array) -> bool:
        """Say whether a matrix travels as P and Q."""
        return matrix.ndim == 2 and sum(matrix.shape) * self.rank * self.min_compression_rate < matrix.size

    def keep(self, bucket: GradBucket, error: Array | None = None, qs: Sequence[Array] = ()) -> None:
        """Take note of what a bucket leaves to the next step, now that all ranks have come so far."""
        if self.use_error_feedback and error is not None:
            self._errors[bucket.index()] = error
        if self.warm_start and qs:
            self._qs[bucket.index()] = list(qs)
        self.iter += bucket.is_last()

    # ---- checkpoints
    def state_dict(self) -> dict[str, Any]:
        """Return what training needs to go on: the errors are those of this rank."""
        errors = {str(index): to_host(error).copy() for index, error in self._errors.items()}
        qs = {str(index): [to_host(q).copy() for q in of_bucket] for index, of_bucket in self._qs.items()}
        return {"iter": self.iter, "errors": errors, "qs": qs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` has returned on this rank."""
        self.iter = int(state["iter"])
        self._errors = {int(index): error.copy() for index, error in state["errors"].items()}
        self._qs = {int(index): [q.copy() for q in of_bucket] for index, of_bucket in state["qs"].items()}
