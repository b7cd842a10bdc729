"""Recurrent layers under torch's names, with its weights and the order of its gates."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hpcdist.autograd import Tensor, apply, arrangement, ops
from hpcdist.errors import explain
from hpcdist.nn import functional as F
from hpcdist.nn import init
from hpcdist.nn.deferral import empty
from hpcdist.nn.module import Module, Parameter

__all__ = ["GRU", "LSTM"]


class _Recurrent(Module):
    """Layers of recurrent cells, each over the outputs of the one before it.

    Layer k has ``weight_ih_lk`` (gates * hidden, inputs), ``weight_hh_lk`` (gates * hidden, hidden), ``bias_ih_lk`` and
    ``bias_hh_lk`` (gates * hidden,), gate after gate, and the same with ``_reverse`` where it is bidirectional. All
    start uniform in +-1/sqrt(hidden).

    Parameters
    ----------
    input_size, hidden_size, num_layers : int
        Features of an input, and of a state; layers.
    bias : bool
        Whether there are biases.
    batch_first : bool
        Inputs and outputs are (batch, time, features), not (time, batch, features).
    dropout : float
        Probability, on the outputs of all layers but the last.
    bidirectional : bool
        Go through time both ways, and put both outputs side by side.
    """

    gates: ClassVar[int]
    states: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        if min(input_size, hidden_size, num_layers) < 1:
            raise ValueError(
                explain(type(self).__name__, got=(input_size, hidden_size, num_layers), expected="at least 1 each")
            )
        if not 0 <= dropout <= 1:
            raise ValueError(explain(f"{type(self).__name__}: dropout", got=dropout, expected="a probability, 0 to 1"))
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.ways = ("", "_reverse") if bidirectional else ("",)
        rows, bound = self.gates * hidden_size, hidden_size**-0.5
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * len(self.ways)
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, width), "weight_hh": (rows, hidden_size)}
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
            for way in self.ways:
                for name, shape in shapes.items():
                    parameter = Parameter(empty(shape, dtype))
                    setattr(self, f"{name}_l{layer}{way}", init.uniform_(parameter, -bound, bound))

    def _run(self, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs of the last layer, and the last states, stacked over layers and ways."""
        last: list[tuple[Tensor, ...]] = []
        if self.batch_first:
            x = x.transpose(1, 0, 2)
        for layer in range(self.num_layers):
            outputs = []
            for way in self.ways:
                first = tuple(s[len(last)] for s in states)
                out, *rest = self._one(x, first, f"l{layer}{way}", reverse=bool(way))
                outputs.append(out)
                last.append(tuple(rest))
            x = outputs[0] if len(outputs) == 1 else arrangement.cat(outputs, 2)
            if layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        ends = [arrangement.stack(each) for each in zip(*last, strict=True)]
        return x.transpose(1, 0, 2) if self.batch_first else x, ends

    @abstractmethod
    def _one(self, x: Tensor, states: tuple[Tensor, ...], name: str, *, reverse: bool) -> tuple[Tensor, ...]:
        """Return the outputs and last states of one layer in one direction."""

    def _part(self, name: str) -> Tensor:
        found: Tensor = getattr(self, name)
        return found

    def _first(self, x: Tensor, given: Any) -> tuple[Tensor, ...]:
        """Return the first states, (layers * ways, batch, hidden): those given, or zeros."""
        if x.ndim != 3 or x.shape[2] != self.input_size:
            raise ValueError(
                explain(
                    f"{type(self).__name__}: input",
                    got=x.shape,
                    expected=f"three dimensions, the last of {self.input_size}",
                )
            )
        shape = (self.num_layers * len(self.ways), x.shape[0 if self.batch_first else 1], self.hidden_size)
        if given is None:
            return (x.new_zeros(shape),) * self.states
        states = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        if len(states) != self.states or any(state.shape != shape for state in states):
            got = ", ".join(str(state.shape) for state in states)
            raise ValueError(
                explain(f"{type(self).__name__}: first state", got=got, expected=f"{self.states} of {shape}")
            )
        return states


class LSTM(_Recurrent):
    """Long short-term memory: gates in the order input, forget, cell, output.

    ``lstm(x, (h_0, c_0))`` returns ``(outputs, (h_n, c_n))``; states are (layers * ways, batch, hidden). Hochreiter and
    Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """

    gates, states = 4, 2

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs, (h, c) = self._run(input, self._first(input, hx))
        return outputs, (h, c)

    def _one(self, x: Tensor, states: tuple[Tensor, ...], name: str, *, reverse: bool) -> tuple[Tensor, ...]:
        bias = self._part(f"bias_ih_{name}") + self._part(f"bias_hh_{name}") if self.bias else None
        gates = F.linear(x, self._part(f"weight_ih_{name}"), bias)
        result: tuple[Tensor, ...] = apply(ops.LSTM, gates, *states, self._part(f"weight_hh_{name}"), reverse=reverse)
        return result


class GRU(_Recurrent):
    """Gated recurrent units: gates in the order reset, update, new; the reset gate acts after the product.

    ``gru(x, h_0)`` returns ``(outputs, h_n)``; states are (layers * ways, batch, hidden).
    """

    gates, states = 3, 1

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, (h,) = self._run(input, self._first(input, hx))
        return outputs, h

    def _one(self, x: Tensor, states: tuple[Tensor, ...], name: str, *, reverse: bool) -> tuple[Tensor, ...]:
        gates = F.linear(x, self._part(f"weight_ih_{name}"), self._part(f"bias_ih_{name}") if self.bias else None)
        biases = (self._part(f"bias_hh_{name}"),) if self.bias else ()
        weight = self._part(f"weight_hh_{name}")
        result: tuple[Tensor, ...] = apply(ops.GRU, gates, *states, weight, *biases, reverse=reverse)
        return result
