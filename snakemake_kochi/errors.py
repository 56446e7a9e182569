"""The errors a user may see: one root, so that one place turns them into a message.

The root is a subclass of Snakemake's WorkflowError: raised while a workflow is parsed or run,
Snakemake prints the message without a traceback.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from snakemake_interface_common.exceptions import WorkflowError

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


class KochiError(WorkflowError):
    """Root of all errors meant for a person: what, where, what was expected, what to type next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\n{hint}")

    @property
    def sentences(self) -> str:
        """All of it, for a place that has one line."""
        return f"{self.message}. {self.hint}" if self.hint else self.message


class UserError(KochiError):
    """An error of ours on its way through Snakemake, which lists the frames of a WorkflowError
    under its message: a user's mistake is in none of them, so it has none to show."""

    @property
    def __traceback__(self) -> None:
        return None

    @__traceback__.setter
    def __traceback__(self, frames: object) -> None:
        pass


def for_snakemake(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Have a function that Snakemake or a Snakefile calls raise UserError for each KochiError."""

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Returned:
        try:
            return function(*arguments, **named)
        except KochiError as error:
            raise UserError(error.message, error.hint) from None

    return call


class ConfigError(KochiError, ValueError):
    """kochi.yaml, an experiment file or a value in them is wrong; lists every problem found."""


class NameNotFoundError(KochiError, LookupError):
    """A machine, recipe, batch, job or worker of that name does not exist."""


class DamagedFileError(KochiError, ValueError):
    """A file of ours cannot be read: not JSON, not the shape expected, or of a newer version."""


class GitError(KochiError):
    """Git refused, or the directory is not a repository."""


class NoCommitError(GitError):
    """A repository can be read, and does not have a commit."""


class ArtifactTooLargeError(KochiError):
    """A result file is larger than what goes into git."""


class PhaseError(KochiError):
    """An install, build or run script failed, or an artifact it promised is missing.

    `reason` is what is told of it in a list of many: by default the message. `output` are the last
    lines that the script printed.
    """

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        *,
        reason: str | None = None,
        output: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint)
        self.reason = reason or message
        self.output = tuple(output)


class ScriptError(PhaseError):
    """A script of the user's ended with another exit status than 0."""

    def __init__(
        self,
        message: str,
        status: int,
        *,
        reason: str | None = None,
        output: Sequence[str] = (),
    ) -> None:
        super().__init__(message, reason=reason, output=output)
        self.status = status


class WorkerError(KochiError):
    """A worker could not be started, or ended when it should not have."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Say which of the valid names was probably meant, as half a sentence ready to append.

    Returns "did you mean 'x'?" when one is close, else "known: a, b" (or "there are none").
    """
    names = sorted(map(str, valid))
    close = difflib.get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(names)}" if names else "there are none"
