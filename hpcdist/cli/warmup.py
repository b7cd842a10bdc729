"""``hpcdist warmup``: compile all kernels into the cache, by running everything that uses them once, in miniature."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcdist.backends import cpu

if TYPE_CHECKING:
    from hpcdist.autograd import Tensor

__all__ = ["exercise", "main"]

GPTS = (
    {"activation": "gelu", "dropout": 0.1},
    {"activation": "gelu_tanh"},
    {"activation": "silu", "norm": "rms", "positions": "rotary"},
    {"activation": "swiglu", "norm": "rms", "positions": "rotary"},
)


def main(arguments: Sequence[str]) -> int:
    """Run ``hpcdist warmup ARGUMENTS``; the exit code is 1 if something could not be kept."""
    counts = sorted(set(_parse(arguments).threads))
    cpu.set_threads(counts[-1])  # numba launches no more than it is told before it is imported
    from hpcdist.kernels.cpu import cache

    begin = time.perf_counter()
    for count in counts:
        cpu.set_threads(count)
        exercise()
    done = cache.STATISTICS
    print(
        f"hpcdist warmup: {done.compiled} kernels compiled in {done.compile_s:.1f} s, {done.loaded} found, "
        f"{time.perf_counter() - begin:.1f} s in all, waiting for others {done.wait_s:.1f} s; "
        f"forms for {', '.join(map(str, counts))} threads in {cache.folder()}"
    )
    if done.kept < done.compiled:
        print(f"hpcdist warmup: {done.compiled - done.kept} kernels could not be kept", file=sys.stderr)
    return int(done.kept < done.compiled)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hpcdist warmup",
        description="Compile all kernels into the cache, for the kind of CPU this runs on. Where login and compute "
        "nodes differ, run it on a compute node: srun -N 1 -n 1 hpcdist warmup.",
    )
    says = "numbers of threads a rank: kernels have a form for 1, and one for 2 or more (default: 1 2, both)"
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help=says)
    options = parser.parse_args(arguments)
    if min(options.threads) < 1:
        parser.error(f"--threads {min(options.threads)}: at least 1 is needed")
    return options


def exercise() -> None:
    """Call every kernel as models and optimizers do."""
    for loss in (*_languages(), *_images(), *_rows()):
        loss.backward()
    _updates()


def _languages() -> Iterator[Tensor]:
    from hpcdist.nn import GPT, GPTConfig

    tokens = np.arange(16).reshape(2, 8) % 5
    for kinds in GPTS:
        yield GPT(GPTConfig(vocab_size=16, seq=8, num_layers=2, num_heads=2, width=16, **kinds))(tokens, tokens)


def _images() -> Iterator[Tensor]:
    from hpcdist import nn

    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(4, 4, 2, stride=2),
        nn.ConvTranspose2d(4, 2, 2, stride=2),
    )
    yield net(_noise(2, 2, 8, 8)).sum()
    yield net.eval()(_noise(2, 2, 8, 8)).sum()


def _rows() -> Iterator[Tensor]:
    from hpcdist.nn import functional as F

    targets = np.array([0, 3, -100, 1])
    yield F.softmax(_noise(4, 8), -1).sum()
    yield F.log_softmax(_noise(4, 8), -1).sum()
    yield F.cross_entropy(_noise(4, 8), targets)


def _updates() -> None:
    from hpcdist import optim
    from hpcdist.autograd import random
    from hpcdist.nn import Linear

    random.words((1, 2, 3, 4), (8,), np.arange(8, dtype=np.uint64))
    layer = Linear(8, 8)
    for optimizer in (
        optim.Adam(layer.named_parameters(), amsgrad=True),
        optim.AdamW(layer.named_parameters()),
        optim.LAMB(layer.named_parameters()),
    ):
        layer(_noise(4, 8)).sum().backward()
        optim.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def _noise(*shape: int) -> Tensor:
    from hpcdist.autograd import tensor

    return tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32), requires_grad=True)
