"""``hpcdist bench step``: time training steps of a fixed model on fixed data, to compare with other frameworks."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hpcdist.comm import Communicator
    from hpcdist.nn import GPT
    from hpcdist.parallel import Replica

__all__ = ["main"]

Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a GPT and its batches. ``batch`` is sequences a rank."""

    n_layer: int = 4
    n_head: int = 8
    d_model: int = 256
    seq: int = 256
    vocab: int = 256
    batch: int = 8
    lr: float = 3e-4
    seed: int = 1234


SIZES = {
    "tiny": Size(n_layer=2, n_head=4, d_model=64, seq=64, vocab=128, batch=4),
    "small": Size(),
    "medium": Size(n_layer=8, n_head=8, d_model=512, seq=512, vocab=4096, batch=4),
}


def main(arguments: Sequence[str]) -> int:
    """Run ``hpcdist bench step ARGUMENTS``."""
    options = _parse(arguments)
    chosen = {f.name: getattr(options, f.name) for f in fields(Size) if getattr(options, f.name) is not None}
    _step(options, replace(SIZES[options.size], **chosen))
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hpcdist bench step", description="Time training steps of a GPT with tied embedding."
    )
    parser.add_argument("--size", choices=SIZES, default="small", help="small is the default")
    for f in fields(Size):
        parser.add_argument(f"--{f.name.replace('_', '-')}", type=type(f.default), help="instead of that of the size")
    parser.add_argument(
        "--mode",
        choices=("eager", "ddp", "fsdp", "tp"),
        default="eager",
        help="one process; gradients averaged; parameters sharded, too; layers shared, of one batch",
    )
    parser.add_argument("--steps", type=int, default=12, help="steps that count")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--weights", type=Path, help=".npz to start from")
    parser.add_argument("--save-weights", type=Path, help="write the initial weights to this .npz")
    parser.add_argument("--json", type=Path, help="append the result to this file, as one line")
    parser.add_argument("--label", default="", help="its name there")
    options = parser.parse_args(arguments)
    if options.steps < 1 or options.warmup < 0:
        parser.error(f"--steps {options.steps} --warmup {options.warmup}: at least 1 and 0 are needed")
    return options


# ---------------------------------------------------------------- what every framework starts from
def initial_weights(size: Size) -> Weights:
    """Draw as GPT-2 does: N(0, 0.02), ends of branches over sqrt(2 n_layer); name after name."""
    rng = np.random.default_rng(size.seed)
    weights: Weights = {}
    for name, shape in _shapes(size):
        if name.endswith("bias"):
            weights[name] = np.zeros(shape, np.float32)
        elif len(shape) == 1:
            weights[name] = np.ones(shape, np.float32)
        else:
            ends_branch = name.endswith(("proj.weight", "fc2.weight"))
            std = 0.02 / np.sqrt(2 * size.n_layer) if ends_branch else 0.02
            weights[name] = rng.standard_normal(shape, dtype=np.float32) * np.float32(std)
    return weights


def _shapes(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    d = size.d_model
    yield "wte.weight", (size.vocab, d)
    yield "wpe.weight", (size.seq, d)
    for i in range(size.n_layer):
        for part, shape in (
            ("ln1", (d,)),
            ("qkv", (3 * d, d)),
            ("proj", (d, d)),
            ("ln2", (d,)),
            ("fc1", (4 * d, d)),
            ("fc2", (d, 4 * d)),
        ):
            yield f"blocks.{i}.{part}.weight", shape
            yield f"blocks.{i}.{part}.bias", shape[:1]
    yield "ln_f.weight", (d,)
    yield "ln_f.bias", (d,)


def batch(size: Size, step: int, rank: int, world: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return tokens and targets (batch, seq) of one rank: arithmetic sequences, of random start and stride."""
    rng = np.random.default_rng((size.seed, step))
    start = rng.integers(0, size.vocab, (size.batch * world, 1))
    stride = rng.integers(1, 8, (size.batch * world, 1))
    sequences = (start + stride * np.arange(size.seq + 1)) % size.vocab
    mine = sequences[rank * size.batch : (rank + 1) * size.batch]
    return np.ascontiguousarray(mine[:, :-1]), np.ascontiguousarray(mine[:, 1:])


def _load(options: argparse.Namespace, size: Size) -> Weights:
    if options.weights is None:
        return initial_weights(size)
    with np.load(options.weights) as file:
        return {name: file[name] for name in file.files}


def _our_name(name: str) -> str:
    for part, owner in (("qkv", "attn"), ("proj", "attn"), ("fc1", "mlp"), ("fc2", "mlp")):
        name = name.replace(f".{part}.", f".{owner}.{part}.")
    return name


# ---------------------------------------------------------------- the measurement
@dataclass
class _Timings:
    """Of every step, warm-up included: wall and CPU seconds, loss, pages of memory touched for the first time."""

    wall: list[float]
    cpu: list[float]
    losses: list[float]
    minor_faults: list[int]


def _step(options: argparse.Namespace, size: Size) -> None:
    import hpcdist as hd

    comm = hd.init()
    base = _resident_bytes()
    with comm.agreed():
        model = _model(options, size, comm.rank == 0)
    replica = _place(options.mode, model, comm)
    rank, world = (comm.rank, comm.size) if options.mode in ("ddp", "fsdp") else (0, 1)
    timings = _train(options, size, model, comm, rank, world)
    overlap = _overlap(size, model, comm, replica) if replica and comm.size > 1 else {}
    everyone = comm.all_gather_object((timings, _peak_bytes(), base))
    if comm.rank == 0:
        result = _result(options, size, world, [e[0] for e in everyone])
        result |= {
            **overlap,
            "params": sum(p.size for p in model.parameters()),
            "peak_rss_mb": [round(e[1] / 2**20, 1) for e in everyone],
            "base_rss_mb": [round(e[2] / 2**20, 1) for e in everyone],
        }
        _report(result, options.json)


def _model(options: argparse.Namespace, size: Size, saves: bool) -> GPT:
    from hpcdist.nn import GPT, GPTConfig

    model = GPT(
        GPTConfig(
            vocab_size=size.vocab,
            seq=size.seq,
            num_layers=size.n_layer,
            num_heads=size.n_head,
            width=size.d_model,
            activation="gelu_tanh",
        )
    )
    weights = _load(options, size)
    model.load_state_dict({_our_name(name): value for name, value in weights.items()})
    if options.save_weights and saves:
        np.savez(options.save_weights, **weights)  # type: ignore[arg-type]
    return model


def _place(mode: str, model: GPT, comm: Communicator) -> Replica | None:
    """Place the model on the ranks as the mode says. Collective over ``comm``."""
    from hpcdist import parallel
    from hpcdist.comm import init_device_mesh

    if mode == "ddp":
        return parallel.replicate(model, comm)
    if mode == "fsdp":
        for block in model.blocks:
            parallel.fully_shard(block, mesh=comm)
        parallel.fully_shard(model, mesh=comm)
    if mode == "tp" and comm.size > 1:
        mesh = init_device_mesh((comm.size,), "tp", comm)
        parallel.parallelize_module(model, mesh, parallel.gpt_plan(model), src_data_rank=None)
    return None


def _train(options: argparse.Namespace, size: Size, model: GPT, comm: Communicator, rank: int, world: int) -> _Timings:
    from hpcdist.optim import AdamW

    # weight decay on every parameter: one group in every framework
    optimizer = AdamW(model.named_parameters(), lr=size.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    timings = _Timings([], [], [], [])
    for step in range(options.warmup + options.steps):
        tokens, targets = batch(size, step, rank, world)
        comm.barrier()
        faults, start, cpu_start = _minor_faults(), time.perf_counter(), time.process_time()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        timings.losses.append(loss.item())
        timings.wall.append(time.perf_counter() - start)
        timings.cpu.append(time.process_time() - cpu_start)
        timings.minor_faults.append(_minor_faults() - faults)
    return timings


def _result(options: argparse.Namespace, size: Size, world: int, ranks: list[_Timings]) -> dict[str, Any]:
    """Return times in milliseconds and page faults: of the slowest rank in each step, CPU of rank 0; medians."""
    wall = np.max([t.wall for t in ranks], axis=0)
    counted, cpu = wall[options.warmup :], ranks[0].cpu[options.warmup :]
    counted_steps = range(options.warmup, options.warmup + options.steps)
    median_s = float(np.median(counted))
    return {
        "label": options.label or f"hpcdist-{options.mode}",
        "world": world,
        "size": options.size,
        "tokens_per_s": size.batch * size.seq * world / median_s,
        "step_ms": median_s * 1e3,
        "min_ms": float(counted.min()) * 1e3,
        "first_step_ms": float(wall[0]) * 1e3,
        "cpu_ms": statistics.median(cpu) * 1e3,
        "cpu_min_ms": min(cpu) * 1e3,
        "minor_faults": statistics.median(max(t.minor_faults[step] for t in ranks) for step in counted_steps),
        "losses": np.mean([t.losses for t in ranks[:world]], axis=0).tolist(),
    }


def _overlap(size: Size, model: GPT, comm: Communicator, replica: Replica, rounds: int = 5) -> dict[str, float]:
    """Return how much of the reductions' time backward hides: medians of steps without, after and beside them."""
    tokens, targets = batch(size, 0, comm.rank, comm.size)

    def seconds(sync: bool, late: bool) -> float:
        model.zero_grad()
        loss = model(tokens, targets)
        comm.barrier()
        start = time.perf_counter()
        replica.set_requires_gradient_sync(sync)
        loss.backward()
        if late:
            replica.finish()
        return max(comm.all_gather_object(time.perf_counter() - start))

    kinds = {"none": (False, False), "late": (False, True), "beside": (True, False)}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, how in kinds.items():
            times[kind].append(seconds(*how))
    none, late, beside = (statistics.median(times[kind]) * 1e3 for kind in kinds)
    return {
        "backward_ms": none,
        "reduced_after_ms": late,
        "reduced_beside_ms": beside,
        "hidden_share": (late - beside) / (late - none),
    }


def _report(result: dict[str, Any], path: Path | None) -> None:
    print(
        f"{result['label']}: {result['tokens_per_s']:.0f} tokens/s  step {result['step_ms']:.1f} ms "
        f"(min {result['min_ms']:.1f}, cpu {result['cpu_ms']:.0f})  "
        f"rss {result['peak_rss_mb']} MB  faults {result['minor_faults']:.0f}  "
        f"loss {result['losses'][0]:.4f} -> {result['losses'][-1]:.4f}"
        + (f"  hidden {result['hidden_share']:.0%} of reductions" if "hidden_share" in result else ""),
        flush=True,
    )
    if path:
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
