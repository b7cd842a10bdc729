"""Strategies that place a model on a mesh."""

from hpcdist.parallel.clip import clip_grad_norm_
from hpcdist.parallel.explain import explain_plan
from hpcdist.parallel.fsdp_module import FSDPModule
from hpcdist.parallel.fully_shard import fully_shard
from hpcdist.parallel.loss import loss_parallel
from hpcdist.parallel.mixed_precision import MixedPrecisionPolicy
from hpcdist.parallel.prepare import PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput
from hpcdist.parallel.replicate import Replica, replicate
from hpcdist.parallel.style import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel
from hpcdist.parallel.tensor_parallel import parallelize_module

__all__ = [
    "ColwiseParallel",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "Replica",
    "RowwiseParallel",
    "SequenceParallel",
    "clip_grad_norm_",
    "explain_plan",
    "fully_shard",
    "loss_parallel",
    "parallelize_module",
    "replicate",
]
