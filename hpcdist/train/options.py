"""The flags of a job, from the fields of a dataclass."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hpcdist.comm import Communicator
from hpcdist.errors import explain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["option", "parse_options"]

Options = TypeVar("Options", bound="DataclassInstance")

_VALUES = {int: "N", float: "X", str: "NAME", type(None): "PATH"}


def option(default: Any, says: str) -> Any:
    """Return a dataclass field with a default (an int, float, str, False, or None for a path) and a line of help."""
    return field(default=default, metadata={"help": says})


def parse_options(
    kind: type[Options], comm: Communicator, arguments: Sequence[str] | None = None, *, description: str = ""
) -> Options:
    """Read a command line that has one flag a field of ``kind``: ``--micro-batch`` sets ``micro_batch``.

    Collective over ``comm``; rank 0 prints what ``--help`` asks for.

    Parameters
    ----------
    kind : dataclass
        Its fields are made by :func:`option`.
    arguments : sequence of str, optional
        Default: those of this process.

    Raises
    ------
    ValueError
        If they make no sense; on every rank.
    """
    with comm.agreed():
        return kind(**vars(_parser(kind, comm.rank == 0, description).parse_args(arguments)))


def _parser(kind: type[Options], loud: bool, description: str) -> _Parser:
    parser = _Parser(loud, description)
    for f in fields(kind):
        flag, says = f"--{f.name.replace('_', '-')}", f.metadata["help"].replace("%", "%%")
        if f.default is False:
            parser.add_argument(flag, action="store_true", help=says)
        elif f.default is None:
            parser.add_argument(flag, metavar=_VALUES[type(None)], help=says)
        else:
            value = type(f.default)
            says += " (default: %(default)s)"
            parser.add_argument(flag, type=value, default=f.default, metavar=_VALUES[value], help=says)
    return parser


class _Parser(argparse.ArgumentParser):
    """Raises where argparse ends the process, which is one rank of many."""

    def __init__(self, loud: bool, description: str) -> None:
        super().__init__(description=description, allow_abbrev=False)
        self.loud = loud

    def error(self, message: str) -> NoReturn:
        raise ValueError(explain(f"command line: {message}", do=f"see {self.prog} --help"))

    def _print_message(self, message: str, file: Any = None) -> None:
        if self.loud:
            super()._print_message(message, file)
