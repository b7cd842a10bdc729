"""Modules and their operations, under torch.nn's names. Knows nothing about ranks."""

from hpcdist.nn import functional, init
from hpcdist.nn.gpt import GPT, GPTConfig
from hpcdist.nn.layers import CrossEntropyLoss, Dropout, Embedding, LayerNorm, Linear, ModuleList, RMSNorm, Sequential
from hpcdist.nn.module import Module, Parameter
from hpcdist.nn.transformer import MLP, MultiheadAttention, TransformerBlock

__all__ = [
    "GPT",
    "MLP",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "GPTConfig",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "RMSNorm",
    "Sequential",
    "TransformerBlock",
    "functional",
    "init",
]
