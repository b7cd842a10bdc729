"""Strategies that place a model on a mesh."""

from hpcdist.parallel.clip import clip_grad_norm_
from hpcdist.parallel.ddp import DistributedDataParallel
from hpcdist.parallel.explain import explain_plan
from hpcdist.parallel.features import ColwiseParallel, RowwiseParallel
from hpcdist.parallel.fsdp_module import FSDPModule, register_fsdp_forward_method
from hpcdist.parallel.full_state import full_state_dict, load_full_state_dict
from hpcdist.parallel.fully_shard import fully_shard
from hpcdist.parallel.fully_shard_arguments import DataParallelMeshDims
from hpcdist.parallel.gpt import gpt_plan
from hpcdist.parallel.loss import loss_parallel
from hpcdist.parallel.mixed_precision import MixedPrecisionPolicy
from hpcdist.parallel.offload import CPUOffloadPolicy, OffloadPolicy
from hpcdist.parallel.prepare import PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput
from hpcdist.parallel.recompute import (
    apply_activation_checkpointing,
    checkpoint,
    checkpoint_sequential,
    checkpoint_wrapper,
)
from hpcdist.parallel.replica import Replica
from hpcdist.parallel.replicate import replicate
from hpcdist.parallel.scaler import ShardedGradScaler
from hpcdist.parallel.selective import create_selective_checkpoint_contexts
from hpcdist.parallel.style import ParallelStyle, SequenceParallel
from hpcdist.parallel.tensor_parallel import parallelize_module

__all__ = [
    "CPUOffloadPolicy",
    "ColwiseParallel",
    "DataParallelMeshDims",
    "DistributedDataParallel",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "Replica",
    "RowwiseParallel",
    "SequenceParallel",
    "ShardedGradScaler",
    "apply_activation_checkpointing",
    "checkpoint",
    "checkpoint_sequential",
    "checkpoint_wrapper",
    "clip_grad_norm_",
    "create_selective_checkpoint_contexts",
    "explain_plan",
    "full_state_dict",
    "fully_shard",
    "gpt_plan",
    "load_full_state_dict",
    "loss_parallel",
    "parallelize_module",
    "register_fsdp_forward_method",
    "replicate",
]
