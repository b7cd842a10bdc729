"""Strategies that place a model on a mesh."""

from hpcdist.parallel.clip import clip_grad_norm_
from hpcdist.parallel.explain import explain_plan
from hpcdist.parallel.features import ColwiseParallel, RowwiseParallel
from hpcdist.parallel.loss import loss_parallel
from hpcdist.parallel.prepare import PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput
from hpcdist.parallel.replicate import Replica, replicate
from hpcdist.parallel.scaler import ShardedGradScaler
from hpcdist.parallel.style import ParallelStyle, SequenceParallel
from hpcdist.parallel.tensor_parallel import parallelize_module
from hpcdist.parallel.whole import full_state_dict, load_full_state_dict

__all__ = [
    "ColwiseParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "Replica",
    "RowwiseParallel",
    "SequenceParallel",
    "ShardedGradScaler",
    "clip_grad_norm_",
    "explain_plan",
    "full_state_dict",
    "load_full_state_dict",
    "loss_parallel",
    "parallelize_module",
    "replicate",
]
