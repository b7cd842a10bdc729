"""Optimizers and schedules, under torch.optim's names. Knows nothing about ranks."""

from hpcdist.optim.adamw import AdamW
from hpcdist.optim.clip import clip_grad_norm_, get_total_norm
from hpcdist.optim.optimizer import Optimizer
from hpcdist.optim.schedule import LambdaLR, cosine_with_warmup
from hpcdist.optim.sgd import SGD

__all__ = ["SGD", "AdamW", "LambdaLR", "Optimizer", "clip_grad_norm_", "cosine_with_warmup", "get_total_norm"]
