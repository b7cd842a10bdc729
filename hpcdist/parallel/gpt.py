"""How ranks share the layers of a GPT."""

from __future__ import annotations

from typing import Any

from hpcdist.dtensor import Invariant, Replicate, Shard
from hpcdist.nn import GPT
from hpcdist.parallel.features import ColwiseParallel, RowwiseParallel
from hpcdist.parallel.prepare import PrepareModuleOutput
from hpcdist.parallel.style import SequenceParallel

__all__ = ["gpt_plan"]


def gpt_plan(model: GPT, sequence_parallel: bool = True) -> dict[str, Any]:
    """Return the tensor-parallel plan of ``hd.nn.GPT``: heads, hidden features and the vocabulary are cut.

    Shoeybi et al. 2019, arXiv:1909.08053, section 3; with ``sequence_parallel`` what lies between is cut along
    positions: Korthikanti et al. 2022, arXiv:2205.05198, section 4. Logits come out whole; the loss needs none such.
    """
    config = model.config
    heads = config.num_kv_heads or config.num_heads
    cut = Shard(1) if sequence_parallel else None
    fused = 2 if config.activation == "swiglu" else None
    plan: dict[str, Any] = {
        "wte": RowwiseParallel(output_layouts=cut),
        "blocks.*.attn.qkv": ColwiseParallel(input_layouts=cut, heads=heads),
        "blocks.*.attn.proj": RowwiseParallel(output_layouts=cut, heads=heads),
        "blocks.*.mlp.fc1": ColwiseParallel(input_layouts=cut, sections=fused),
        "blocks.*.mlp.fc2": RowwiseParallel(output_layouts=cut),
        "": PrepareModuleOutput(output_layouts=(None,), desired_output_layouts=(Invariant(),)),
    }
    if sequence_parallel:
        gathered = PrepareModuleOutput(output_layouts=(cut, cut), desired_output_layouts=(None, Replicate()))
        plan |= {"blocks.*.ln?": SequenceParallel(), "ln_f": (SequenceParallel(), gathered)}
    return plan
