"""Bodies of tests of reproducible runs: on ranks that are threads, and over MPI, against one rank that does all."""

import numpy as np

from hpcdist import checkpoint, nn, optim, parallel, train
from hpcdist.autograd import manual_seed, random
from hpcdist.comm import init_device_mesh
from hpcdist.data import BatchPlan

MAX_NORM = 0.5
ROWS = 2  # of a micro-batch; the last one has one


def model_of(dropout=0.2, dtype=np.float32):
    manual_seed(3)
    config = nn.GPTConfig(vocab_size=16, seq=8, num_layers=2, num_heads=2, width=20, dropout=dropout)
    model = nn.GPT(config)
    for p in model.parameters():
        p.data = p.data.astype(dtype)
    return model


def place(model, comm, kind, **options):
    """Return the strategy: ddp, fsdp, or hsdp on two copies."""
    if kind == "ddp":
        return parallel.replicate(model, comm, **{"bucket_bytes": 1 << 12, **options})
    mesh = init_device_mesh((2, comm.size // 2), ("copy", "shard"), comm) if kind == "hsdp" else comm
    for block in model.blocks:
        parallel.fully_shard(block, mesh=mesh, **options)
    return parallel.fully_shard(model, mesh=mesh, **options)


def whole(p):
    return p.full_tensor().data if hasattr(p, "full_tensor") else p.data


def batch(step, index, num_micro):
    rows = 1 if index == num_micro - 1 else ROWS
    tokens = np.random.default_rng((step, index)).integers(0, 16, (rows, 9))
    return tokens[:, :-1], tokens[:, 1:]


def trained(comm, kind, num_micro, num_steps=5, model=None, placed=None, **options):
    """Return losses by step and micro-batch, norms, weights and moments of a run of one's own."""
    model = model or model_of()
    strategy = placed or place(model, comm, kind, **options)
    optimizer = optim.AdamW(model.named_parameters(), lr=3e-3)
    losses, norms = {}, []
    for step in range(num_steps):
        for turn in strategy.turns(num_micro):
            index = 0 if turn is None else turn
            inputs, targets = batch(step, index, num_micro)
            with strategy.micro_batch(turn, of=num_micro), random.at(step=step, part=index):
                loss = model(inputs, targets)
                loss.backward(len(inputs) / (ROWS * num_micro - 1))
            if turn is not None:
                losses[step, turn] = loss.item()
        norms.append(parallel.clip_grad_norm_(model.parameters(), MAX_NORM))
        optimizer.step()
        optimizer.zero_grad()
    told = comm.all_gather_object(losses)
    moments = {
        f"{name} {key}": optimizer.state[name][key] for name in optimizer.state for key in ("step", "exp_avg_sq")
    }
    return {
        "losses": {place: loss for some in told for place, loss in some.items()},
        "norms": norms,
        **{name: whole(p).copy() for name, p in model.named_parameters()},
        **({} if kind != "ddp" else moments),
    }


def assert_same(found, expected):
    for name, value in expected.items():
        if name in found:
            np.testing.assert_array_equal(found[name], value, err_msg=name, strict=isinstance(value, np.ndarray))
    assert found["losses"] == expected["losses"]
    assert len(found) > 20


class Windows:
    """Samples that are made up from their number."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def batch(self, indices):
        tokens = np.stack([np.random.default_rng(int(i)).integers(0, 16, 9) for i in indices])
        return tokens[:, :-1], tokens[:, 1:]


def looped(comm, kind, folder, steps, *, num_micro=7, resume=False):
    """Train by the loop, from the last checkpoint in ``folder`` if asked for; return what it logged and its state."""
    model = model_of()
    plan = BatchPlan(40, ROWS * num_micro - 1, micro_batch=ROWS, seed=1)
    strategy = place(model, comm, kind)
    optimizer = optim.AdamW(model.named_parameters(), lr=3e-3)
    schedule = optim.LambdaLR(optimizer, optim.cosine_with_warmup(2, 10))
    state = train.TrainState(model, optimizer, schedule, 40, fixed=train.fixed_bits(comm, plan))
    if resume:
        state.load_state_dict(checkpoint.load(folder))
    loop = train.Loop(
        state=state,
        strategy=strategy,
        comm=comm,
        samples=Windows(40),
        held_out=Windows(9),
        plan=plan,
        folder=folder,
        steps=steps,
        save_every=0,
        val_every=3,
        progress=train.Progress(steps, enabled=False, unit="tokens"),
        max_norm=MAX_NORM,
    )
    loop.run()
    records = train.Metrics(folder).read()
    return {
        "losses": [[r["step"], r["loss"], r.get("val_loss")] for r in records],
        **{name: value for name, value in state.state_dict().items() if isinstance(value, np.ndarray)},
    }
