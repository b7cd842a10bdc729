"""What is communicated: how often, how much, how long, from which line and in which module (CommDebugMode)."""

from __future__ import annotations

import functools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from hpcdist.autograd import is_replaying
from hpcdist.comm.observing import Observation, observing
from hpcdist.dtensor.debug_table import check_level, rows, text
from hpcdist.dtensor.trace import Paths, Place, Spans, place
from hpcdist.errors import explain

__all__ = ["CommDebugMode", "CommRecord"]


class CommRecord(NamedTuple):
    """One call of a verb on one rank.

    Attributes
    ----------
    verb : str
        Its blocking name, or "object" for what exchanges Python objects.
    group, size : str, int
        The group it was called on, and the number of its ranks.
    payload_bytes : int
        Of the arrays that this rank brought (for recv: of the one that receives), or of the pickled object.
    shape, dtype : tuple of int and str, or None
        Of the first of these arrays.
    seconds : float or None
        From the call until it was found to be done; None while it is under way.
    site : str
        The innermost line outside this package, ``file:line``.
    module : str or None
        Path of the innermost module it belongs to, "" for the whole model; None outside of all.
    phase : str
        "forward" or "backward".
    """

    verb: str
    group: str
    size: int
    payload_bytes: int
    shape: tuple[int, ...] | None
    dtype: str | None
    seconds: float | None
    site: str
    module: str | None
    phase: str


class CommDebugMode:
    """See all verbs that this thread calls in a block, on any group, and say what they cost.

    A verb that is made of others counts once. Forming groups is not counted. Modes may be nested: each sees all that
    is called in its block. Entering it again starts anew. Nothing here communicates, so ranks may use it or not::

        with CommDebugMode(model) as mode:
            model(x).sum().backward()
        assert mode.get_comm_counts() == {"all_reduce": 2}
        print(mode.generate_comm_debug_tracing_table())

    Parameters
    ----------
    module : Module, optional
        The tree in which modules have their paths, and which backward is told by: what is communicated there belongs
        to the module whose forward recorded it. Default: the outermost module that is running, and backward belongs
        to none.
    """

    def __init__(self, module: Any = None) -> None:
        if module is not None and not hasattr(module, "named_modules"):
            raise TypeError(explain("CommDebugMode: module", got=type(module).__name__, expected="a module, or None"))
        self._module = module
        self._exits = ExitStack()
        self._active = False
        self._begin()

    def _begin(self) -> None:
        self._seen: list[tuple[Observation, str, str | None, str]] = []
        self._roots: dict[int, Any] = {} if self._module is None else {id(self._module): self._module}
        self._paths, self._spans = Paths(), Spans()

    def __enter__(self) -> Self:
        if self._active:
            do = "make one for each of the nested blocks"
            raise RuntimeError(explain("CommDebugMode: this one is active already", do=do))
        self._begin()
        self._active = True
        if self._module is not None:
            self._follow(self._module)
        self._exits.enter_context(observing(self._note))
        return self

    def __exit__(self, *_: object) -> None:
        self._active = False
        self._exits.close()

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {verb}" for verb, count in self.get_comm_counts().items())
        return f"CommDebugMode({counts or 'nothing'})"

    # ---- what was called
    @property
    def records(self) -> list[CommRecord]:
        """All calls, in order."""
        return [
            CommRecord(o.verb, o.group, o.size, o.payload_bytes, o.shape, o.dtype, o.seconds, site, module, phase)
            for o, site, module, phase in self._seen
        ]

    def get_comm_counts(self) -> Counter[str]:
        """Return how often each verb was called."""
        return Counter(record.verb for record in self.records)

    def get_total_counts(self) -> int:
        """Return how many verbs were called."""
        return len(self._seen)

    def get_comm_bytes(self) -> Counter[str]:
        """Return the bytes that this rank brought to each verb."""
        total: Counter[str] = Counter()
        for record in self.records:
            total[record.verb] += record.payload_bytes
        return total

    # ---- what the modules hold
    def get_parameter_info(self) -> dict[str, dict[str, Any]]:
        """Return the parameters by the path of their module and their name in it.

        Of the given module; else of those that were running when something was called.
        """
        return {path: dict(module.slots) for path, module in self._modules() if module.slots}

    def get_sharding_info(self) -> dict[str, dict[str, Any]]:
        """Return the placements of distributed parameters by the path of their module and their name in it."""
        placed = {
            path: {name: p.placements for name, p in parameters.items() if hasattr(p, "placements")}
            for path, parameters in self.get_parameter_info().items()
        }
        return {path: placements for path, placements in placed.items() if placements}

    def _modules(self) -> Iterator[tuple[str, Any]]:
        for root in self._roots.values():
            yield from root.named_modules()

    # ---- tables
    def generate_comm_debug_tracing_table(self, noise_level: int = 3) -> str:
        """Return a table of what was called, with counts, bytes and milliseconds.

        Parameters
        ----------
        noise_level : int
            0: a row for each verb; 1: and module, and forward or backward; 2: and group and call site; 3: for each
            call, in order.
        """
        return text(rows(self.records, noise_level), f"{self!r}, {sum(self.get_comm_bytes().values())} bytes")

    def log_comm_debug_tracing_table_to_file(
        self, file_name: str | Path = "comm_mode_log.txt", noise_level: int = 3
    ) -> None:
        """Write the table into a file; each rank that calls this needs a name of its own."""
        Path(file_name).write_text(self.generate_comm_debug_tracing_table(noise_level) + "\n", encoding="utf-8")

    def generate_json_dump(self, file_name: str | Path = "comm_mode_log.json", noise_level: int = 3) -> None:
        """Write counts, bytes, the table's rows, and parameters with their placements into a file, as JSON."""
        check_level(noise_level)
        parameters = {
            path: {name: _described(p) for name, p in held.items()} for path, held in self.get_parameter_info().items()
        }
        content = {
            "counts": self.get_comm_counts(),
            "bytes": self.get_comm_bytes(),
            "rows": rows(self.records, noise_level),
            "parameters": parameters,
        }
        Path(file_name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    # ---- noting
    def _note(self, seen: Observation) -> None:
        here = place()
        self._seen.append((seen, here.site, self._path(here), "backward" if is_replaying() else "forward"))

    def _path(self, here: Place) -> str | None:
        if not here.modules:
            return None if here.node is None else self._spans.path_of(here.node)
        given = () if self._module is None else (self._module,)
        outermost = here.modules[-1]
        if not given:
            self._roots.setdefault(id(outermost), outermost)
        return self._paths.find(here.modules[0], (*given, outermost))

    def _follow(self, root: Any) -> None:
        """Mark on the tape which module recorded what, until the mode ends."""
        thread, known = threading.get_ident(), set()
        for path, module in root.named_modules():
            if id(module) not in known:
                known.add(id(module))
                wrap = functools.partial(_marked, self._spans, path, thread)
                module.around.append(wrap)
                self._exits.callback(module.around.remove, wrap)


def _marked(spans: Spans, path: str, thread: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call of a module that marks what this thread records in it."""

    def marked(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return call(*args, **kwargs)
        with spans.within(path):
            return call(*args, **kwargs)

    return marked


def _described(parameter: Any) -> dict[str, Any]:
    placements = getattr(parameter, "placements", None)
    told = {} if placements is None else {"placements": [str(p) for p in placements]}
    return {"shape": list(parameter.shape), "dtype": str(parameter.dtype), **told}
