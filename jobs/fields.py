"""Train a surrogate of a partial differential equation: from the medium to the pressure of flow through it.

    hpcdist launch -n 2 jobs/fields.py         # or: mpirun -n 2 python jobs/fields.py; or: python jobs/fields.py

The equation is Darcy's, -div(a grad u) = 1 on the unit square with u = 0 around it. Media a of two materials are drawn
and the equation is solved for each, here and now: nothing is read. A U-Net then learns a -> u to a mean error of 6 % of
the solution's norm. The same flags give the same losses on any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hpcdist as hd
from hpcdist import checkpoint, data, nn, optim, parallel, train
from hpcdist.backends import cpu
from hpcdist.errors import explain

MATERIALS = 3.0, 12.0
"""What a is, here and there."""

HELD_OUT = 128
SOLVED_AT_ONCE = 64
INPUT_MEAN, INPUT_SPREAD, OUTPUT_SIZE = 7.5, 4.5, 0.01
"""What brings media and solutions to the size of 1."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the job is told; the command line has one flag a field."""

    steps: int = train.option(300, "steps in total, those before a --resume included")
    samples: int = train.option(1024, f"media to train on; {HELD_OUT} more are held out")
    cells: int = train.option(24, "cells along a side of the square, divisible by 2^depth")
    global_batch: int = train.option(16, "samples a step, over all data-parallel ranks")
    micro_batch: int = train.option(8, "samples a forward pass")
    width: int = train.option(16, "channels at full resolution, a multiple of 4")
    depth: int = train.option(2, "how often the resolution halves")
    lr: float = train.option(5e-3, "peak of the learning rate, which warms up and falls along a cosine")
    seed: int = train.option(0, "of media, weights and the order of samples")
    save_every: int = train.option(100, "steps between checkpoints; one always comes at the end")
    val_every: int = train.option(100, "steps between validations; one always comes at the end")
    out: str | None = train.option(None, "folder for checkpoints and metrics; default: runs/fields-DATE-TIME, new")
    resume: bool = train.option(False, "go on from the latest checkpoint in --out")


# ---------------------------------------------------------------- the equation
def media(count: int, cells: int, seed: int) -> np.ndarray:
    """Draw media (count, cells, cells): one material where a smooth random field is positive, the other elsewhere.

    The field is Gaussian with covariance (9 - Laplacian)^-2, no flux through the boundary, and mean 0.
    """
    centres, waves = (np.arange(cells) + 0.5) / cells, np.arange(max(cells // 2, 2))
    basis = np.cos(np.pi * np.outer(centres, waves))
    size = 1 / (np.pi**2 * (waves[:, None] ** 2 + waves**2) + 9)
    size[0, 0] = 0
    random = np.random.default_rng(seed)
    smooth = basis @ (random.standard_normal((count, len(waves), len(waves))) * size) @ basis.T
    return np.where(smooth > 0, MATERIALS[1], MATERIALS[0])


def solve(a: np.ndarray) -> np.ndarray:
    """Return the solutions (count, n, n) for media of these shapes, by finite volumes.

    Fluxes between cells follow the harmonic mean of their a. The matrix is block tridiagonal, a block a row of cells,
    and is eliminated block by block, all media together.
    """
    (count, n, _), flux = a.shape, _fluxes(a)
    across = _fluxes(a.transpose(0, 2, 1)).transpose(0, 2, 1)
    down = flux.transpose(1, 0, 2)
    rows, i = np.zeros((n, count, n, n)), np.arange(n)
    rows[:, :, i, i] = (flux[:, 1:] + flux[:, :-1] + across[:, :, 1:] + across[:, :, :-1]).transpose(1, 0, 2)
    rows[:, :, i[1:], i[:-1]] = rows[:, :, i[:-1], i[1:]] = -across[:, :, 1:-1].transpose(1, 0, 2)
    source, inverse = np.full((n, count, n, 1), 1 / n**2), np.empty_like(rows)
    for row in range(n):
        if row:
            coupling = down[row][:, :, None]
            rows[row] -= coupling * inverse[row - 1] * coupling.transpose(0, 2, 1)
            source[row] += coupling * (inverse[row - 1] @ source[row - 1])
        inverse[row] = np.linalg.inv(rows[row])
    u = np.zeros((n + 1, count, n, 1))
    for row in reversed(range(n)):
        u[row] = inverse[row] @ (source[row] + down[row + 1][:, :, None] * u[row + 1])
    return u[:-1, :, :, 0].transpose(1, 0, 2)


def _fluxes(a: np.ndarray) -> np.ndarray:
    """Return the flux for a unit difference through all faces down the rows of cells, the boundary's included."""
    inside = 2 * a[:, 1:] * a[:, :-1] / (a[:, 1:] + a[:, :-1])
    return np.concatenate([2 * a[:, :1], inside, 2 * a[:, -1:]], axis=1)


def problems(count: int, cells: int, seed: int) -> data.ArrayDataset:
    """Return media and their solutions, each (count, 1, cells, cells), float32, of the size of 1."""
    a = media(count, cells, seed)
    u = np.concatenate([solve(a[i : i + SOLVED_AT_ONCE]) for i in range(0, count, SOLVED_AT_ONCE)])
    inputs, outputs = (a - INPUT_MEAN) / INPUT_SPREAD, u / OUTPUT_SIZE
    return data.ArrayDataset(*(field.astype(np.float32)[:, None] for field in (inputs, outputs)))


# ---------------------------------------------------------------- the model
class Surrogate(nn.Module):
    """A U-Net from media to solutions, and its error."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = nn.UNet(1, 1, width, depth)

    def forward(self, a: np.ndarray, u: np.ndarray) -> hd.Tensor:
        """Return the mean over samples of the error's norm, relative to that of the solution ``u``."""
        size = np.sqrt((u * u).sum((1, 2, 3)))
        error = ((self.net(hd.Tensor(a)) - u) ** 2).sum((1, 2, 3)).sqrt()
        return (error / size).mean()


def build(options: Options) -> train.TrainState:
    """Return a new model with its optimizer."""
    for name, least in (("steps", 1), ("samples", 1), ("save_every", 0), ("val_every", 0), ("cells", 2)):
        if getattr(options, name) < least:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(explain(flag, got=getattr(options, name), expected=f"at least {least}"))
    if options.cells % (1 << options.depth):
        raise ValueError(explain("--cells", got=options.cells, expected=f"a multiple of {1 << options.depth}"))
    hd.manual_seed(options.seed)
    model = Surrogate(options.width, options.depth)
    optimizer = optim.AdamW(model.named_parameters(), lr=options.lr, weight_decay=1e-4)
    factor = optim.cosine_with_warmup(options.steps // 10, options.steps)
    return train.TrainState(model, optimizer, optim.LambdaLR(optimizer, factor), options.samples)


# ---------------------------------------------------------------- the run
def job(options: Options, comm: hd.comm.Communicator) -> train.Loop:
    """Train as told, and return the loop with what it trained. Collective over ``comm``."""
    with comm.agreed():
        state = build(options)
        batches = options.global_batch, options.micro_batch
        plan = data.BatchPlan(options.samples, batches[0], micro_batch=batches[1], seed=options.seed)
        plan.assign(comm.size, comm.rank)
        samples = problems(options.samples, options.cells, 2 * options.seed)
        held_out = problems(HELD_OUT, options.cells, 2 * options.seed + 1)
    strategy = parallel.replicate(state.model, comm)
    folder, step = train.open_folder(options.out, comm, name="fields", resume=options.resume)
    if step is not None:
        with comm.agreed():
            state.load_state_dict(checkpoint.load(folder, step=step))
    loop = train.Loop(
        state=state,
        strategy=strategy,
        comm=comm,
        samples=samples,
        held_out=held_out,
        plan=plan,
        folder=folder,
        steps=options.steps,
        save_every=options.save_every,
        val_every=options.val_every,
        progress=train.Progress(options.steps, enabled=comm.rank == 0, unit="samples"),
    )
    loop.progress.say(describe(options, state, comm, folder))
    loop.run()
    finish(loop)
    return loop


def describe(options: Options, state: train.TrainState, comm: hd.comm.Communicator, folder: Path) -> str:
    """Say what is about to happen."""
    size = sum(p.size for p in state.model.parameters())
    begin = f"from step {state.step} " if state.step else ""
    return "\n".join(
        (
            f"model     U-Net of {size:,} parameters: width {options.width}, depth {options.depth}",
            f"ranks     mesh dp={comm.size}, strategy replicate, threads a rank {cpu.num_threads()}",
            f"data      {options.samples} media of {options.cells} x {options.cells} cells; {HELD_OUT} held out",
            f"training  {begin}to step {options.steps}: {options.global_batch} samples a step, "
            f"{options.micro_batch} at a time",
            f"output    {folder}: metrics.jsonl, checkpoints",
        )
    )


def finish(loop: train.Loop) -> None:
    """Say how good the surrogate is. Collective over the communicator."""
    val_loss = loop.validate() if np.isnan(loop.val_loss) else loop.val_loss  # there may have been no step left to take
    loop.progress.say(f"val_loss {val_loss:.4f}\nmean error on held-out media: {val_loss:.2%} of the solution's norm")


def main() -> None:
    """Run the job as the command line says."""
    comm = hd.init()
    with train.told_once("fields.py"):
        job(train.parse_options(Options, comm, description="Train a surrogate of Darcy flow."), comm)


if __name__ == "__main__":
    main()
