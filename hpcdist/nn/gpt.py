"""A decoder-only language model: pre-norm blocks, causal attention, tied embedding.

The architecture is that of Radford et al. 2019, section 2.3, with the variations that became common since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.autograd import Tensor, no_grad, random
from hpcdist.autograd.operand import wrapped
from hpcdist.errors import explain
from hpcdist.nn import functional as F
from hpcdist.nn import init
from hpcdist.nn.layers import Dropout, Embedding, ModuleList
from hpcdist.nn.module import Module
from hpcdist.nn.transformer import NORMS, TransformerBlock, choose

__all__ = ["GPT", "GPTConfig"]


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Sizes and kinds of a :class:`GPT`.

    Attributes
    ----------
    vocab_size, seq : int
        Number of different tokens; longest input in tokens.
    num_layers, num_heads, width : int
        Blocks, heads a block, features a token; width must be a multiple of num_heads.
    activation : str
        ``"gelu"``, ``"gelu_tanh"`` or ``"swiglu"`` (whose hidden width is 8/3 of the width, rounded up to a multiple
        of 8; else 4).
    norm : str
        ``"layer"`` or ``"rms"``.
    positions : str
        ``"learned"`` or ``"rotary"``.
    dropout : float
        Probability, after the embedding and on both branches of a block.
    num_kv_heads : int, optional
        Pairs of key and value, each shared by several queries; None: one a query.
    """

    vocab_size: int
    seq: int
    num_layers: int
    num_heads: int
    width: int
    activation: str = "gelu"
    norm: str = "layer"
    positions: str = "learned"
    dropout: float = 0.0
    eps: float = 1e-5
    rotary_base: float = 10000.0
    num_kv_heads: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "seq", "num_layers", "num_heads", "width"):
            if getattr(self, name) < 1:
                raise ValueError(explain(f"GPTConfig: {name}", got=getattr(self, name), expected="at least 1"))
        if self.positions not in ("learned", "rotary"):
            raise ValueError(explain("GPTConfig: positions", got=self.positions, expected="'learned' or 'rotary'"))

    @property
    def hidden(self) -> int:
        """Width between the two layers of a block's feed-forward part."""
        return -(-8 * self.width // 24) * 8 if self.activation == "swiglu" else 4 * self.width


class GPT(Module):
    """Predict the next token at every position.

    Initial weights are normal with deviation 0.02, those that end a branch 0.02 / sqrt(2 num_layers); each is drawn
    by its name from the seed (``hd.manual_seed``).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        c = self.config = config
        self.wte = Embedding(c.vocab_size, c.width)
        if c.positions == "learned":
            self.wpe = Embedding(c.seq, c.width)
        self.drop = Dropout(c.dropout)
        rotary_base = c.rotary_base if c.positions == "rotary" else None
        self.blocks = ModuleList(
            TransformerBlock(
                c.width,
                c.num_heads,
                c.hidden,
                activation=c.activation,
                norm=c.norm,
                rotary_base=rotary_base,
                dropout=c.dropout,
                eps=c.eps,
                num_kv_heads=c.num_kv_heads,
            )
            for _ in range(c.num_layers)
        )
        self.ln_f = choose("GPT: norm", NORMS, c.norm)(c.width, c.eps)
        self._draw()

    def _draw(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                init.zeros_(parameter)
            elif parameter.ndim == 2:
                ends_branch = name.endswith(("proj.weight", "fc2.weight"))
                branches = 2 * self.config.num_layers if ends_branch else 1
                init.normal_(parameter, std=0.02 / branches**0.5, name=name)

    def forward(self, tokens: Any, targets: Any = None) -> Tensor:
        """Return logits (batch, seq, vocab_size), or with ``targets`` their mean cross-entropy in nats.

        Parameters
        ----------
        tokens, targets : integer array or Tensor, shape (batch, seq)
            seq at most that of the configuration.
        """
        tokens = wrapped(tokens)
        seq = tokens.shape[-1] if tokens.ndim else 0
        if tokens.ndim != 2 or seq > self.config.seq:
            raise ValueError(explain("GPT: tokens", got=tokens.shape, expected=f"(batch, seq <= {self.config.seq})"))
        x = self.wte(tokens)
        if self.config.positions == "learned":
            x = x + self.wpe.weight[:seq]
        x, branch = self.drop(x), None
        for block in self.blocks:
            x, branch = block(x, branch)
        _, y = self.ln_f(x, branch)
        if targets is None:
            return F.linear(y, self.wte.weight)
        return F.linear_cross_entropy(y, self.wte.weight, targets)

    def generate(
        self, prompt: Any, num_tokens: int, *, temperature: float = 1.0, seed: int = 0
    ) -> np.ndarray[Any, Any]:
        """Return ``prompt`` continued by ``num_tokens`` sampled tokens: integers (n,) -> (n + num_tokens,).

        Draw k depends on ``seed`` and k only. ``temperature`` 0 takes the most probable token. Dropout acts in a model
        that is training: call ``eval()`` before.
        """
        if not temperature >= 0:
            raise ValueError(explain("generate: temperature", got=temperature, expected="0 or above"))
        tokens = np.asarray(prompt, np.int64).reshape(-1)
        if not tokens.size:
            raise ValueError(explain("generate: prompt", got="no tokens", expected="at least one"))
        for k in range(num_tokens):
            with no_grad():
                logits = self(tokens[None, -self.config.seq :])[0, -1].numpy().astype(np.float64)
            tokens = np.append(tokens, _sample(logits, temperature, random.key(seed, "sample", k)))
        return tokens


def _sample(logits: np.ndarray[Any, Any], temperature: float, key: random.Key) -> int:
    if temperature == 0:
        return int(logits.argmax())
    weights = np.exp((logits - logits.max()) / temperature).cumsum()
    return int(np.searchsorted(weights, random.uniform(key, (), np.float64) * weights[-1], side="right"))
