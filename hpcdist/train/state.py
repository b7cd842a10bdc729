"""The state of a run: all that it needs to go on from where it was, as one flat dict of names to values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdist.autograd import random
from hpcdist.backends import rounding
from hpcdist.comm import Communicator
from hpcdist.data import BatchPlan
from hpcdist.dtensor import Layout
from hpcdist.errors import CheckpointError, explain
from hpcdist.nn import Module
from hpcdist.optim import LambdaLR, Optimizer
from hpcdist.parallel.full_state import full_state_dict, layouts_of, load_full_state_dict, whole

__all__ = ["TrainState", "fixed_bits"]


@dataclass
class TrainState:
    """Model, optimizer, schedule, how far the run is, and the random state.

    Attributes
    ----------
    step : int
        Steps taken.
    samples_seen : int
        Samples of the endless sequence of epochs that those steps used; all the state a sampler has.
    num_samples : int
        Samples in an epoch: the same data must be there when the run goes on.
    fixed : dict of str to int or str
        What else must be the same then, and would not show in the shapes of parameters.
    """

    model: Module
    optimizer: Optimizer
    schedule: LambdaLR
    num_samples: int
    step: int = 0
    samples_seen: int = 0
    fixed: dict[str, int | str] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """Return arrays and numbers by name: parameters under their own names, the rest in groups.

        Collective over the meshes of distributed parameters, which are gathered with their optimizer's state.
        """
        layouts = layouts_of(self.model)
        state: dict[str, Any] = dict(full_state_dict(self.model))
        for parameter, entries in self.optimizer.state.items():
            for key, value in entries.items():
                state[f"optim/{key}/{parameter}"] = _whole(value, layouts.get(parameter))
        return state | self._numbers()

    def _numbers(self) -> dict[str, Any]:
        """Return all that is no array."""
        state: dict[str, Any] = {}
        for name, value in random.get_state().items():
            state[f"random/{name}"] = value
        state["schedule/last_epoch"] = self.schedule.last_epoch
        state["sampler/samples_seen"] = self.samples_seen
        state["sampler/num_samples"] = self.num_samples
        state["train/step"] = self.step
        state.update({f"fixed/{name}": value for name, value in self.fixed.items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned.

        Raises
        ------
        CheckpointError
            If it is of another model, or was made with another seed or other data.
        """
        self._check_whole(state)
        self._check_same(state)
        groups = ("optim/", "random/", "schedule/", "sampler/", "train/", "fixed/")
        layouts = layouts_of(self.model)
        try:
            optimizer = {
                name: {key: _part(value, layouts.get(name)) for key, value in entries.items()}
                for name, entries in _by_parameter(state).items()
            }
            load_full_state_dict(self.model, {k: v for k, v in state.items() if not k.startswith(groups)})
            self.optimizer.load_state_dict({"state": optimizer, "param_groups": self._groups()})
        except ValueError as error:
            raise CheckpointError(explain(f"resume: the checkpoint is of another model: {error}")) from error
        random.set_state({name: state[f"random/{name}"] for name in random.get_state()})
        self.schedule.load_state_dict({"last_epoch": state["schedule/last_epoch"]})
        self.samples_seen, self.step = int(state["sampler/samples_seen"]), int(state["train/step"])

    def _check_same(self, state: Mapping[str, Any]) -> None:
        """Compare what decides how the run goes on, and what parameters mean."""
        mine: dict[str, int | str] = {
            "random/seed": random.get_state()["seed"],
            "sampler/num_samples": self.num_samples,
        }
        mine |= {f"fixed/{name}": value for name, value in self.fixed.items()}
        for name, value in mine.items():
            if state[name] != value:
                raise CheckpointError(
                    explain(
                        f"resume: {name.split('/')[1]} is not that of the run",
                        got=value,
                        expected=state[name],
                        do="go on with the seed, data, sequence length and model that the run was started with; "
                        "with --reproducible also with its micro-batches, machines, libraries and threads",
                    )
                )

    def _check_whole(self, state: Mapping[str, Any]) -> None:
        # a parameter that had no gradient before the checkpoint has no state in it
        own = [name for name, _ in (*self.model.named_parameters(), *self.model.named_buffers())]
        missing = [name for name in (*own, *self._numbers()) if name not in state]
        if missing:
            raise CheckpointError(
                explain(
                    "resume: the checkpoint is of another model, or of no run at all",
                    got=f"nothing named {missing[0]}",
                    do="go on with the sizes and flags that the run was started with; "
                    "--reproducible goes on only with runs that were started with it",
                )
            )

    def _groups(self) -> list[dict[str, Any]]:
        # the rates are the schedule's, and what the run says now counts for the other options
        groups: list[dict[str, Any]] = self.optimizer.state_dict()["param_groups"]
        return groups


def fixed_bits(comm: Communicator, plan: BatchPlan) -> dict[str, int | str]:
    """Return what a reproducible run adds to :attr:`TrainState.fixed`: micro-batches, and all that decides about bits.

    Nothing if ``comm`` is not reproducible. The number of ranks is not in it.
    """
    if not comm.reproducible:
        return {}
    return {"global_batch": plan.global_batch, "micro_batch": plan.micro_batch, **rounding.settings()}


# ---------------------------------------------------------------- what an optimizer remembers
def _whole(value: Any, layout: Layout | None) -> Any:
    """Return the whole of what is kept of a parameter, flat. Collective over the layout's mesh."""
    if layout is None or not getattr(value, "ndim", 0):
        return value
    return whole(value.reshape(layout.local_shape), layout).reshape(-1)


def _part(value: Any, layout: Layout | None) -> Any:
    if layout is None or not getattr(value, "ndim", 0):
        return value
    if value.size != layout.size:
        raise ValueError(explain("the state of a distributed parameter", got=value.size, expected=layout.size))
    return layout.part_of(value.reshape(layout.shape)).reshape(-1)


def _by_parameter(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in state.items():
        if name.startswith("optim/"):
            _, key, parameter = name.split("/", 2)
            found.setdefault(parameter, {})[key] = value
    return found
