"""Train a GPT on text.

    hpcdist launch -n 2 jobs/gpt.py            # or: mpirun -n 2 python jobs/gpt.py; or: python jobs/gpt.py

Without --data it learns the source code of Python's standard library, byte by byte. The same flags give the same losses
on any number of ranks: to the last digits, and with --reproducible to the last bit.

Ranks share each batch (--strategy ddp), parameters and optimizer state, too (fsdp; hsdp: within groups of ranks), or
each layer (tp); with --mesh dp=2,tp=2 both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hpcdist as hd
from hpcdist import checkpoint, data, nn, optim, parallel, train
from hpcdist.backends import cpu
from hpcdist.errors import explain

STRATEGIES = ("replicate", "ddp", "fsdp", "hsdp", "tp")
LEAST = {"steps": 1, "save_every": 0, "val_every": 0, "sample_tokens": 0, "lr": 0, "weight_decay": 0}
PROMPT_TOKENS = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the job is told; the command line has one flag a field."""

    data: str | None = train.option(
        None, "text file, folder, or HDF5 file of token ids (FILE or FILE:NAME); default: Python's standard library"
    )
    steps: int = train.option(400, "steps in total, those before a --resume included")
    global_batch: int = train.option(16, "sequences a step, over all data-parallel ranks")
    micro_batch: int = train.option(4, "sequences a forward pass")
    seq: int = train.option(128, "tokens a sequence")
    layers: int = train.option(4, "transformer blocks")
    width: int = train.option(128, "features a token")
    heads: int = train.option(4, "attention heads a block")
    mlp: str = train.option("gelu", "gelu, gelu_tanh or swiglu")
    norm: str = train.option("layer", "layer or rms")
    positions: str = train.option("rotary", "learned or rotary")
    dropout: float = train.option(0.0, "probability")
    lr: float = train.option(6e-3, "peak of the learning rate, which warms up and falls along a cosine")
    weight_decay: float = train.option(0.1, "of matrices")
    seed: int = train.option(0, "of weights, dropout and the order of samples")
    strategy: str = train.option("replicate", " or ".join(STRATEGIES))
    mesh: str | None = train.option(
        None,
        "ranks along axes: dp (share batches), or for hsdp replica and shard, and tp (share layers), as dp=2,tp=2; "
        "default: all ranks along the one axis of the strategy",
    )
    reproducible: bool = train.option(False, "the same bits at any number of ranks that share batches; takes longer")
    save_every: int = train.option(100, "steps between checkpoints; one always comes at the end")
    val_every: int = train.option(100, "steps between validations; one always comes at the end")
    sample_tokens: int = train.option(300, "tokens that the model writes at the end")
    out: str | None = train.option(None, "folder for checkpoints and metrics; default: a new one, runs/gpt-DATE-TIME")
    resume: bool = train.option(False, "go on from the latest checkpoint in --out")


def job(options: Options, comm: hd.comm.Communicator) -> train.Loop:
    """Train as told, and return the loop with what it trained. Collective over ``comm``."""
    if options.reproducible:
        comm = hd.init(comm, reproducible=True)
    with comm.agreed():
        tokens = data.open_tokens(options.data)
        windows, held_out = cut(tokens.tokens, options.seq)
        plan = data.BatchPlan(len(windows), options.global_batch, micro_batch=options.micro_batch, seed=options.seed)
        sizes = mesh_sizes(options, comm.size)
    mesh = hd.init_device_mesh(tuple(sizes.values()), tuple(sizes), comm)
    sharing = mesh[tuple(name for name in sizes if name != "tp")]
    with comm.agreed():
        plan.assign(sharing.size(), sharing.get_mesh_group().rank)
        state, strategy = build(options, tokens.vocab_size, len(windows), sharing, mesh["tp"])
        state.fixed |= train.fixed_bits(comm, plan)
    folder, step = train.open_folder(options.out, comm, name="gpt", resume=options.resume)
    if step is not None:
        with comm.agreed():
            state.load_state_dict(checkpoint.load(folder, step=step))
    loop = train.Loop(
        state=state,
        strategy=strategy,
        comm=comm,
        samples=windows,
        held_out=held_out,
        plan=plan,
        folder=folder,
        steps=options.steps,
        save_every=options.save_every,
        val_every=options.val_every,
        progress=train.Progress(options.steps, enabled=comm.rank == 0, unit="tokens"),
        units_per_sample=options.seq,
        data_comm=sharing.get_mesh_group(),
    )
    loop.progress.say(describe(options, state, tokens.description, mesh, folder))
    loop.run()
    finish(loop, options.sample_tokens)
    return loop


def cut(tokens: np.ndarray, seq: int) -> tuple[data.Windows, data.Windows]:
    """Return samples to train on, and samples of the last 5 % to validate with (shorter ones if there is little)."""
    kept, held_out = data.split(tokens, 0.05)
    windows = data.Windows(kept, seq)
    if len(held_out) < 2:
        raise ValueError(
            explain("--data: too little to hold 5 % out", got=f"{len(tokens)} tokens", expected="at least 40")
        )
    return windows, data.Windows(held_out, min(seq, len(held_out) - 1))


def mesh_sizes(options: Options, num_ranks: int) -> dict[str, int]:
    """Return the number of ranks along each axis of the mesh."""
    if options.strategy not in STRATEGIES:
        raise ValueError(explain("--strategy", got=options.strategy, expected=" or ".join(STRATEGIES)))
    axes = ("replica", "shard", "tp") if options.strategy == "hsdp" else ("dp", "tp")
    if options.mesh is None and options.strategy != "hsdp":
        return dict.fromkeys(axes, 1) | {"tp" if options.strategy == "tp" else "dp": num_ranks}
    parts = [part.partition("=") for part in (options.mesh or "").split(",")]
    given = {name: int(size) if size.isdecimal() else 0 for name, _, size in parts}
    sizes = dict.fromkeys(axes, 1) | given
    if len(given) < len(parts) or len(sizes) > len(axes) or math.prod(sizes.values()) != num_ranks:
        expected = f"{','.join(f'{name}=N' for name in axes)}, whose product is {num_ranks}, the number of ranks"
        raise ValueError(explain("--mesh", got=options.mesh, expected=expected))
    if sizes["tp"] > 1 and options.strategy == "replicate":
        raise ValueError(explain("--mesh", got=options.mesh, expected="tp=1", do="say --strategy tp to share layers"))
    return sizes


def build(
    options: Options, vocab_size: int, num_samples: int, sharing: hd.comm.DeviceMesh, tp: hd.comm.DeviceMesh
) -> tuple[train.TrainState, train.Strategy | None]:
    """Return a new model with its optimizer, and how ranks share it; weight decay is for matrices only.

    Collective over the meshes: that of ranks that share batches, and that of ranks that share layers.
    """
    for name, least in LEAST.items():
        if not least <= getattr(options, name) < np.inf:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(explain(flag, got=getattr(options, name), expected=f"a number, at least {least}"))
    hd.manual_seed(options.seed)
    config = nn.GPTConfig(
        vocab_size=vocab_size,
        seq=options.seq,
        num_layers=options.layers,
        num_heads=options.heads,
        width=options.width,
        activation=options.mlp,
        norm=options.norm,
        positions=options.positions,
        dropout=options.dropout,
    )
    with nn.deferred():  # no rank holds more than its part
        model = nn.GPT(config)
    strategy = place(model, options.strategy, sharing, tp)
    named = list(model.named_parameters())
    groups = [
        {"params": [(n, p) for n, p in named if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [(n, p) for n, p in named if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95))
    factor = optim.cosine_with_warmup(options.steps // 10, options.steps)
    fixed = {name: getattr(options, name) for name in ("heads", "mlp", "norm", "positions")}
    return train.TrainState(model, optimizer, optim.LambdaLR(optimizer, factor), num_samples, fixed=fixed), strategy


def place(model: nn.GPT, strategy: str, sharing: hd.comm.DeviceMesh, tp: hd.comm.DeviceMesh) -> train.Strategy | None:
    """Place the model on the ranks, which draw what they hold of it. Collective over the meshes."""
    if tp.size() > 1:
        parallel.parallelize_module(model, tp, parallel.gpt_plan(model), src_data_rank=None)
    if strategy in ("fsdp", "hsdp"):
        for block in model.blocks:
            parallel.fully_shard(block, mesh=sharing)
        return parallel.fully_shard(model, mesh=sharing)
    shares = sharing.size() > 1 or tp.size() == 1 or sharing.comm.reproducible
    return parallel.replicate(model, sharing) if shares else None


def describe(options: Options, state: train.TrainState, source: str, mesh: hd.comm.DeviceMesh, folder: Path) -> str:
    """Say what is about to happen."""
    size = sum(p.size for p in state.model.parameters())
    begin = f"from step {state.step} " if state.step else ""
    every = f"every {options.save_every} steps and " if options.save_every else ""
    axes = ", ".join(f"{name}={mesh.size(name)}" for name in mesh.axis_names if name != "tp" or mesh.size(name) > 1)
    return "\n".join(
        (
            f"model     GPT of {size:,} parameters: layers {options.layers}, width {options.width}, "
            f"heads {options.heads}",
            f"ranks     mesh {axes}, strategy {options.strategy}{', reproducible' * options.reproducible}, "
            f"threads a rank {cpu.num_threads()}",
            f"data      {source}; the last 5 % held out",
            f"training  {begin}to step {options.steps}: {options.global_batch} sequences a step, "
            f"{options.micro_batch} at a time, of {options.seq} tokens",
            f"output    {folder}: metrics.jsonl, checkpoints {every}at the end",
        )
    )


def finish(loop: train.Loop, sample_tokens: int) -> None:
    """Show what the model writes, and draw the loss curve. Collective: every rank computes the text."""
    with hd.no_grad():
        tokens = loop.state.model.eval().generate(loop.held_out.tokens[:PROMPT_TOKENS], sample_tokens, temperature=0.8)
    loop.progress.say(f"--- sample\n{readable(tokens, loop.state.model.config.vocab_size)}\n---")
    hd.comm.on_one_rank(loop.comm, lambda: draw(loop.folder))
    val_loss = loop.validate() if np.isnan(loop.val_loss) else loop.val_loss  # there may have been no step left to take
    loop.progress.say(f"loss curve in {loop.folder}/loss.svg\nval_loss {val_loss:.4f}")


def readable(tokens: np.ndarray, vocab_size: int) -> str:
    """Return bytes as the text they are, without what would confuse a terminal; other tokens as numbers."""
    if vocab_size != 256:
        return " ".join(map(str, tokens))
    text = bytes(tokens.astype(np.uint8)).decode(errors="replace")
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def draw(folder: Path) -> None:
    """Draw the loss of all steps so far, those before a --resume included."""
    records = train.Metrics(folder).read()
    measured = [r for r in records if "val_loss" in r]
    curves = (
        [r["step"] for r in records],
        [r["loss"] for r in records],
        [r["step"] for r in measured],
        [r["val_loss"] for r in measured],
    )
    train.write_svg(folder / "loss.svg", *curves)
    train.write_png(folder / "loss.png", *curves)


def main() -> None:
    """Run the job as the command line says."""
    comm = hd.init()
    with train.told_once("gpt.py"):
        job(train.parse_options(Options, comm, description="Train a GPT on text."), comm)


if __name__ == "__main__":
    main()
