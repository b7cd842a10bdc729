"""How a job ends by an error that all of its ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcdist.errors import HpcdistError

__all__ = ["told_once"]

_OF_THE_USER = (ValueError, OSError, ArithmeticError, HpcdistError)
"""Kinds of errors that say what is wrong with the input or the machine; of others the traceback says more."""


@contextmanager
def told_once(job: str) -> Iterator[None]:
    """Turn an error that ranks agreed on into the end of the program: exit code 1, the message once, no traceback.

    An error that was not agreed on (:meth:`Communicator.agreed`), or that looks like a mistake in the program, passes.

    Parameters
    ----------
    job : str
        Put before the message.
    """
    try:
        yield
    except _OF_THE_USER as error:
        if not hasattr(error, "echo"):
            raise
        end = SystemExit(1 if error.echo else f"{job}: {error}")
        end.echo = error.echo  # type: ignore[attr-defined]
        raise end from error
