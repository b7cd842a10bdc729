"""Optimizers and schedules, under torch.optim's names. Knows nothing about ranks."""

from hpcdist.optim import lr_scheduler
from hpcdist.optim.adagrad import Adagrad
from hpcdist.optim.adam import Adam
from hpcdist.optim.adamw import AdamW
from hpcdist.optim.averaging import SWALR, AveragedModel, get_ema_avg_fn, get_swa_avg_fn, update_bn
from hpcdist.optim.clip import clip_grad_norm_, clip_grad_value_, get_total_norm
from hpcdist.optim.in_backward import apply_optimizer_in_backward
from hpcdist.optim.lamb import LAMB
from hpcdist.optim.lars import LARS
from hpcdist.optim.lbfgs import LBFGS
from hpcdist.optim.optimizer import Optimizer
from hpcdist.optim.rmsprop import RMSprop
from hpcdist.optim.scaler import GradScaler
from hpcdist.optim.schedule import LambdaLR, LRScheduler, cosine_with_warmup
from hpcdist.optim.sgd import SGD

__all__ = [
    "LAMB", "LARS", "LBFGS", "SGD", "SWALR", "Adagrad", "Adam", "AdamW", "AveragedModel", "GradScaler",
    "LRScheduler", "LambdaLR", "Optimizer", "RMSprop", "apply_optimizer_in_backward", "clip_grad_norm_",
    "clip_grad_value_", "cosine_with_warmup", "get_ema_avg_fn", "get_swa_avg_fn", "get_total_norm", "lr_scheduler",
    "update_bn",
]  # fmt: skip
