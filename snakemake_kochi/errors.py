"""The errors that a user may see, with one root, so that one place turns them into a message.

The root is a subclass of Snakemake's WorkflowError: if it is raised while a workflow is parsed or
run, Snakemake prints the message without a traceback.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from snakemake_interface_common.exceptions import WorkflowError

from snakemake_kochi.hints import typed

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

# The exit statuses of a shell whose command was told to end.
STOPPED = frozenset(128 + each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
_MOST_KNOWN = 10  # names in one message
_MOST_OF_LINE = 2000  # characters: the text of a stranger may be a line of megabytes
# The advice for a full disk or an exhausted quota.
ROOM = "Free some space there, and type the same line again."


def printable(text: str, most: int | None = None) -> str:
    """A text in one line: control characters, which would move the cursor of a terminal, are
    escapes. If it has more than `most` characters, its middle is left out: names often differ at
    the end. Bytes of names that are not UTF-8 stay."""
    if most is not None:
        text = shortened(text, most)
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or "\udc80" <= c <= "\udcff" else ascii(c)[1:-1] for c in text
    )


def shortened(text: str, most: int) -> str:
    """A text without its middle, if it has more than `most` characters."""
    if len(text) <= most:
        return text
    kept = most - len("...")
    return f"{text[: kept - kept // 2]}...{text[-(kept // 2) :]}"


def _printable_lines(text: str, most: int | None = None) -> str:
    return "\n".join(printable(line.expandtabs(4), most) for line in text.split("\n"))


class KochiError(WorkflowError):
    """Root of all errors meant for a person: what, where, what was expected, what to type next.

    `exit_status` is that of a command that ends with it.
    """

    exit_status = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        # Not shorter: a hint has what is typed.
        self.hint = None if hint is None else _printable_lines(hint)
        self.message = _printable_lines(message, _MOST_OF_LINE)
        super().__init__(self.message if hint is None else f"{self.message}\n{self.hint}")

    @property
    def sentences(self) -> str:
        """The whole message, for a place with a single line."""
        return f"{self.message}. {self.hint}" if self.hint else self.message


class UserError(KochiError):
    """An error of this package on its way through Snakemake.

    Snakemake lists the frames of a WorkflowError under its message. A user's mistake is in none of
    them, so this error has no frames to show.
    """

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
            hint = None if error.hint is None else typed(error.hint)
            raise UserError(typed(error.message), hint) from None

    return call


class ConfigError(KochiError, ValueError):
    """kochi.yaml, an experiment file or a value in them is wrong; lists every problem found."""


class NameNotFoundError(KochiError, LookupError):
    """A machine, recipe, batch, job or worker of that name does not exist."""


class DamagedFileError(KochiError, ValueError):
    """A file of this package cannot be read.

    It is not JSON, has another shape than expected, or has a newer version.
    """


class GitError(KochiError):
    """Git refused a command, or the directory is not a repository."""


class MissingContentError(KochiError):
    """The contents of large files, at `paths` in a branch, are not in this clone."""

    def __init__(self, message: str, hint: str | None = None, *, paths: Sequence[str]) -> None:
        super().__init__(message, hint)
        self.paths = tuple(paths)


class PhaseError(KochiError):
    """An install, build or run script failed, or an artifact that it promised is missing.

    `reason` is the text for a list of many failures; its default is the message. `output` are the
    last lines that the script printed. `record` is that of the failed attempt of a run, if it got
    as far as its script.
    """

    record: Mapping[str, Any] | None = None
    was_stopped = False

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        *,
        reason: str | None = None,
        output: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint)
        self.reason = reason or self.message
        self.output = tuple(output)


class ScriptError(PhaseError):
    """A script of the user's ended with an exit status other than 0.

    `was_stopped`: as after a signal that a worker or a person sends.
    """

    def __init__(
        self,
        message: str,
        status: int,
        hint: str | None = None,
        *,
        reason: str | None = None,
        output: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint, reason=reason, output=output)
        self.status = status
        self.was_stopped = status in STOPPED


class WorkerError(KochiError):
    """A worker could not be started, or ended unexpectedly."""


def told(error: OSError) -> str:
    """An error of the system for people: the file, if there is one, and the reason.

    A full disk or a directory without permission is for the user to repair, and no bug.
    """
    where = f"{error.filename}: " if error.filename else ""
    return printable(f"{where}{error.strerror or error}", _MOST_OF_LINE)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Half a sentence that names the valid name that was probably meant.

    Returns "did you mean 'x'?" when one is close, otherwise "known: a, b", of many the first ones
    (or "there are none").
    """
    import difflib  # here: few processes need it

    names = sorted(filter(None, map(str, valid)))
    close = difflib.get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(names) - _MOST_KNOWN} more" if len(names) > _MOST_KNOWN else ""
    return f"known: {', '.join(names[:_MOST_KNOWN])}{more}" if names else "there are none"
