"""The training loop: a step is a fixed list of micro-batches, whatever the number of ranks that share it."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcdist import checkpoint, parallel
from hpcdist.array import Array
from hpcdist.autograd import no_grad, random
from hpcdist.comm import Communicator
from hpcdist.data import BatchPlan, DataLoader
from hpcdist.data.order import Indices
from hpcdist.errors import explain
from hpcdist.train.metrics import Metrics
from hpcdist.train.progress import Progress
from hpcdist.train.state import TrainState

__all__ = ["Loop", "Samples", "Strategy"]

VALIDATION_SAMPLES = 128


class Strategy(Protocol):
    """What the loop asks of a model that was placed on a mesh."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Only add to gradients in a block."""

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
        if self.strategy is not None:
            self.strategy.set_gradient_divide_factor(1)  # micro-batches carry their share of the global batch
        begin = self.state.samples_seen
        sharing = self._sharing
        mine = self.plan.assign(sharing.size, sharing.rank)
        batches: Generator[Any, None, None] = iter(DataLoader(self.samples, self._indices(begin, mine)))
        with Metrics(self.folder) as metrics, self.progress, closing(batches):
            while self.state.step < self.steps:
                start = time.perf_counter()
                loss = self._step(batches, mine)
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

    def _sum_over_ranks(self, totals: list[float]) -> Array:
        """Add up over the ranks that share a batch. Collective over ``comm``, whose ranks all get the same."""
        copies = self.comm.size // self._sharing.size
        return self.comm.all_reduce(np.array(totals, np.float64)) / copies

    def _indices(self, position: int, mine: range) -> Iterator[Any]:
        """Yield the samples of this rank's micro-batches, step after step."""
        for step in range(self.steps - self.state.step):
            parts = self.plan.micro_batches(position + step * self.plan.global_batch)
            yield from (parts[i] for i in mine)

    def _step(self, batches: Iterator[Any], mine: range) -> float:
        """Take one step and return the loss: the mean over the global batch."""
        model, optimizer = self.state.model, self.state.optimizer
        optimizer.zero_grad()
        total = 0.0
        for part in mine:
            batch = next(batches)
            share = len(batch[0]) / self.plan.global_batch
            with (
                nullcontext() if part == mine[-1] or self.strategy is None else self.strategy.no_sync(),
                random.at(step=self.state.step, part=part),
            ):
                loss = model(*batch)
                loss.backward(share)
            total += share * loss.item()
        mean = self._agreed_mean(total)
        norm = parallel.clip_grad_norm_(model.parameters(), self.max_norm)
        self._check_finite(f"the norm of the gradients of step {self.state.step + 1}", norm)
        optimizer.step()
        self.state.schedule.step()
        self.state.step += 1
        self.state.samples_seen += self.plan.global_batch
        return mean

    def _agreed_mean(self, total: float) -> float:
        """Add ``total`` up over ranks; an error that one of them holds back, or a loss that is no number, ends all."""
        mean, troubled = self._sum_over_ranks([total, float(self._trouble is not None)])
        if troubled:
            self.comm.agree(self._trouble)
        self._check_finite(f"the loss of step {self.state.step + 1}", mean)
        return float(mean)

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
        total = 0.0
        with no_grad():
            for part in parts[self._sharing.rank :: self._sharing.size]:
                total += len(part) / count * model(*self.held_out.batch(part)).item()
        model.train()
        return float(self._sum_over_ranks([total])[0])

    def save(self) -> None:
        """Write a checkpoint of this step. Collective over the communicator."""
        checkpoint.save(self.folder, self.state.state_dict(), step=self.state.step, comm=self.comm)
