"""The training loop: a step is a fixed list of micro-batches, whatever the number of ranks that share it."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcdist import checkpoint, parallel
from hpcdist.array import Array
from hpcdist.autograd import no_grad, random
from hpcdist.backends import rounding
from hpcdist.comm import Communicator
from hpcdist.data import BatchPlan, DataLoader, deal
from hpcdist.data.order import Indices
from hpcdist.errors import explain
from hpcdist.parallel import tree
from hpcdist.train.metrics import Metrics
from hpcdist.train.progress import Progress
from hpcdist.train.state import TrainState

__all__ = ["Loop", "Samples", "Strategy"]

VALIDATION_SAMPLES = 128


class Strategy(Protocol):
    """What the loop asks of a model that was placed on a mesh."""

    def turns(self, of: int) -> Sequence[int | None]:
        """Return which of ``of`` micro-batches this rank works on; None: on any one, which does not count."""

    def micro_batch(self, index: Any, *, of: int) -> AbstractContextManager[None]:
        """Run the forward and the backward of one of ``turns`` in a block."""

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide the sum of gradients over ranks by ``factor``."""


class Samples(Protocol):
    """What the loop asks of data."""

    def __len__(self) -> int: ...

    def batch(self, indices: Indices, /) -> tuple[Array, ...]:
        """Return the samples ``indices`` (shape (n,)) as what the model is called with: arrays of shape (n, ...)."""


@dataclass
class Loop:
    """Train ``state`` to ``steps`` steps.

    Where ``comm`` is reproducible, losses, norms and weights have the same bits at any number of data-parallel ranks,
    on one kind of machine and at one number of threads; that of tensor-parallel ranks changes them.

    Attributes
    ----------
    strategy : Strategy, optional
        How ranks share a batch; None: they do not.
    comm : Communicator
        All ranks.
    samples, held_out : Samples
        What to train on, and to validate with: the model makes a loss, the mean over its samples, of a batch.
    plan : BatchPlan
        Which samples make up a step.
    folder : Path
        Receives checkpoints and, from rank 0, ``metrics.jsonl``.
    save_every, val_every : int
        Steps between checkpoints, and between validations; both also come at the end. 0: only at the end.
    max_norm : float
        Gradients are clipped to this norm.
    units_per_sample : int
        How many of what ``progress`` counts are in a sample.
    data_comm : Communicator, optional
        The ranks that share a global batch, if not all do: those of a tensor-parallel group work on the same samples.
    """

    state: TrainState
    strategy: Strategy | None
    comm: Communicator
    samples: Samples
    held_out: Samples
    plan: BatchPlan
    folder: Path
    steps: int
    save_every: int
    val_every: int
    progress: Progress
    max_norm: float = 1.0
    units_per_sample: int = 1
    data_comm: Communicator | None = None
    val_loss: float = math.nan
    _trouble: Exception | None = field(default=None, init=False)
    _rounding: rounding.Settings | None = field(default=None, init=False)

    def run(self) -> None:
        """Train, validate and save.

        Collective over the communicator.

        Raises
        ------
        FloatingPointError
            If a loss, or the norm of the gradients, is not finite; on every rank, before the step changes anything.
        CheckpointError, OSError
            If something cannot be written; on every rank.
        """
        turns = self._turns()
        self._rounding = rounding.settings() if self.comm.reproducible else None
        indices = self._indices(self.state.samples_seen, turns)
        batches: Generator[Any, None, None] = iter(DataLoader(self.samples, indices))
        with Metrics(self.folder) as metrics, self.progress, closing(batches):
            while self.state.step < self.steps:
                start = time.perf_counter()
                loss = self._step(batches, turns)
                rate = self.plan.global_batch * self.units_per_sample / (time.perf_counter() - start)
                name = f"{self.progress.unit}_per_s"
                record = {"step": self.state.step, "loss": loss, name: rate, **self._validated()}
                self._keep(metrics, record)
                self.progress.update(self.state.step, loss, rate)
                if self._is_due(self.save_every):
                    self.save()
        self.comm.agree(self._trouble)

    @property
    def _sharing(self) -> Communicator:
        return self.comm if self.data_comm is None else self.data_comm

    def _turns(self) -> Sequence[int | None]:
        """Return which micro-batches of a step this rank works on, in order; None: on any one, which does not count."""
        mine = self.plan.assign(self._sharing.size, self._sharing.rank)
        if self.strategy is not None:
            self.strategy.set_gradient_divide_factor(1)  # micro-batches carry their share of the global batch
            return self.strategy.turns(self.plan.num_micro)
        if self.comm.reproducible:
            do = "place the model with replicate or fully_shard, on one rank too"
            raise ValueError(explain("reproducible: strategy", got=None, expected="one", do=do))
        return mine

    def _add_up(self, terms: dict[int, float], *counts: float) -> list[float]:
        """Return the sum of terms, which have indices, and of counts, over the ranks that share a batch.

        Collective over ``comm``, whose ranks all get the same.
        """
        if self.comm.reproducible:
            told = self.comm.all_gather_object((terms, counts))
            known = {index: term for some, _ in reversed(told) for index, term in some.items()}
            by_count = zip(*(told_counts for _, told_counts in told), strict=True)
            return [tree.total(known[index] for index in sorted(known)), *map(sum, by_count)]
        own = 0.0
        for term in terms.values():
            own += term
        copies = self.comm.size // self._sharing.size
        totals: list[float] = (self.comm.all_reduce(np.array([own, *counts])) / copies).tolist()
        return totals

    def _indices(self, position: int, turns: Sequence[int | None]) -> Iterator[Any]:
        """Yield the samples of this rank's micro-batches, step after step."""
        for step in range(self.steps - self.state.step):
            parts = self.plan.micro_batches(position + step * self.plan.global_batch)
            yield from (parts[-1 if turn is None else turn] for turn in turns)

    def _step(self, batches: Iterator[Any], turns: Sequence[int | None]) -> float:
        """Take one step and return the loss: the mean over the global batch."""
        model, optimizer, num_micro = self.state.model, self.state.optimizer, self.plan.num_micro
        optimizer.zero_grad()
        terms: dict[int, float] = {}
        for turn in turns:
            batch = next(batches)
            share = len(batch[0]) / self.plan.global_batch
            with (
                nullcontext() if self.strategy is None else self.strategy.micro_batch(turn, of=num_micro),
                random.at(step=self.state.step, part=num_micro - 1 if turn is None else turn),
            ):
                loss = model(*batch)
                loss.backward(0.0 if turn is None else share)
            if turn is not None:
                terms[turn] = share * loss.item()
        mean = self._agreed_mean(terms)
        norm = parallel.clip_grad_norm_(model.parameters(), self.max_norm)
        self._check_finite(f"the norm of the gradients of step {self.state.step + 1}", norm)
        optimizer.step()
        self.state.schedule.step()
        self.state.step += 1
        self.state.samples_seen += self.plan.global_batch
        return mean

    def _agreed_mean(self, terms: dict[int, float]) -> float:
        """Add the terms up over ranks; an error that one of them holds back, or a loss that is no number, ends all."""
        mean, troubled = self._add_up(terms, float(self._trouble is not None))
        if troubled:
            self.comm.agree(self._trouble)
        self._check_finite(f"the loss of step {self.state.step + 1}", mean)
        return mean

    def _check_finite(self, what: str, value: float) -> None:
        """Object to a number that is not finite, and the same on every rank."""
        if not math.isfinite(value):
            self.comm.agree(
                FloatingPointError(
                    explain(
                        f"training diverged: {what} is no finite number",
                        got=value,
                        do="lower the learning rate; the checkpoints that were written are intact",
                    )
                )
            )

    def _keep(self, metrics: Metrics, record: dict[str, Any]) -> None:
        """Write a record, on rank 0; a failure waits for the next step's exchange, where all ranks hear of it."""
        if self.comm.rank == 0 and self._trouble is None:
            try:
                metrics.append(record)
            except OSError as error:
                self._trouble = error

    def _is_due(self, every: int) -> bool:
        return self.state.step == self.steps or bool(every and self.state.step % every == 0)

    def _validated(self) -> dict[str, float]:
        if not self._is_due(self.val_every):
            return {}
        self.val_loss = self.validate()
        self._check_finite(f"the validation loss after step {self.state.step}", self.val_loss)
        self.progress.say(f"val_loss {self.val_loss:.4f} after step {self.state.step}")
        return {"val_loss": self.val_loss}

    def validate(self) -> float:
        """Return the loss on samples spread evenly over those held out.

        Collective over the communicator.
        """
        count = min(VALIDATION_SAMPLES, len(self.held_out))
        samples = np.linspace(0, len(self.held_out) - 1, count).astype(np.int64)
        parts = [samples[i : i + self.plan.micro_batch] for i in range(0, count, self.plan.micro_batch)]
        model = self.state.model.eval()
        terms: dict[int, float] = {}
        with no_grad():
            for turn in deal(len(parts), self._sharing.size, self._sharing.rank):
                part = parts[0 if turn is None else turn]  # with any one it takes part in gathering parameters
                loss = model(*self.held_out.batch(part)).item()
                if turn is not None:
                    terms[turn] = len(part) / count * loss
        model.train()
        return self._add_up(terms)[0]

    def save(self) -> None:
        """Write a checkpoint of this step. Collective over the communicator."""
        if self._rounding is not None:
            with self.comm.agreed():
                rounding.check_same("since the run began", rounding.settings(), self._rounding)
        checkpoint.save(self.folder, self.state.state_dict(), step=self.state.step, comm=self.comm)
