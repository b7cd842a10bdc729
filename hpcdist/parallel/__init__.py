"""Strategies that place a model on a mesh."""

from hpcdist.parallel import comm_hooks
from hpcdist.parallel.averaging import HierarchicalModelAverager, PeriodicModelAverager, average_parameters
from hpcdist.parallel.clip import clip_grad_norm_
from hpcdist.parallel.ddp import DistributedDataParallel
from hpcdist.parallel.explain import explain_plan
from hpcdist.parallel.features import ColwiseParallel, RowwiseParallel
from hpcdist.parallel.fsdp import FullyShardedDataParallel
from hpcdist.parallel.fsdp_module import FSDPModule, register_fsdp_forward_method
from hpcdist.parallel.fsdp_options import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from hpcdist.parallel.full_state import full_state_dict, load_full_state_dict
from hpcdist.parallel.fully_shard import fully_shard
from hpcdist.parallel.fully_shard_arguments import DataParallelMeshDims
from hpcdist.parallel.gpt import gpt_plan
from hpcdist.parallel.loss import loss_parallel
from hpcdist.parallel.mixed_precision import MixedPrecisionPolicy
from hpcdist.parallel.offload import CPUOffloadPolicy, OffloadPolicy
from hpcdist.parallel.post_local_sgd import PostLocalSGDOptimizer
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
from hpcdist.parallel.state_types import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from hpcdist.parallel.style import ParallelStyle, SequenceParallel
from hpcdist.parallel.sync_batchnorm import SyncBatchNorm, convert_sync_batchnorm
from hpcdist.parallel.tensor_parallel import parallelize_module
from hpcdist.parallel.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    always_wrap_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from hpcdist.parallel.zero import ZeroRedundancyOptimizer

__all__ = [
    "BackwardPrefetch",
    "CPUOffload",
    "CPUOffloadPolicy",
    "ColwiseParallel",
    "CustomPolicy",
    "DataParallelMeshDims",
    "DistributedDataParallel",
    "FSDPModule",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "FullyShardedDataParallel",
    "HierarchicalModelAverager",
    "MixedPrecision",
    "MixedPrecisionPolicy",
    "ModuleWrapPolicy",
    "OffloadPolicy",
    "OptimStateDictConfig",
    "ParallelStyle",
    "PeriodicModelAverager",
    "PostLocalSGDOptimizer",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "Replica",
    "RowwiseParallel",
    "SequenceParallel",
    "ShardedGradScaler",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "ShardingStrategy",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
    "SyncBatchNorm",
    "ZeroRedundancyOptimizer",
    "always_wrap_policy",
    "apply_activation_checkpointing",
    "average_parameters",
    "checkpoint",
    "checkpoint_sequential",
    "checkpoint_wrapper",
    "clip_grad_norm_",
    "comm_hooks",
    "convert_sync_batchnorm",
    "create_selective_checkpoint_contexts",
    "explain_plan",
    "full_state_dict",
    "fully_shard",
    "gpt_plan",
    "lambda_auto_wrap_policy",
    "load_full_state_dict",
    "loss_parallel",
    "parallelize_module",
    "register_fsdp_forward_method",
    "replicate",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
]
