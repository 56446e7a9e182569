"""How every command prints, asks and follows: text for people, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from snakemake_kochi.backoff import Backoff
from snakemake_kochi.errors import KochiError, printable
from snakemake_kochi.hints import typed

_COLOURS = {
    "waiting": "cyan",
    "running": "yellow",
    "cancelling": "yellow",
    "succeeded": "green",
    "done": "green",
    "skipped": "bright_black",
    "installed": "green",
    "cancelled": "magenta",
    "stale": "yellow",
    "left": "bright_black",
    "lost": "red",
    "failed": "red",
    "exit": "red",
    "killed": "red",
    "ok": "green",
    "note": "cyan",
    "warning": "yellow",
}


def print_json(data: Any) -> None:
    """One JSON document. Bytes of names that are not UTF-8 are escaped as \\udcXX."""
    click.echo(json.dumps(data, indent=1))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]], nothing: str) -> None:
    """A table with a line per row, or the sentence `nothing` when there is no row."""
    if not rows:
        click.echo(typed(nothing), err=True)
        return
    # Most commands print no table.
    from tabulate import tabulate

    cells = [[shown(value) for value in row] for row in rows]
    table = tabulate(cells, headers=list(headers), tablefmt="simple", disable_numparse=True)
    for line in table.splitlines():
        click.echo(line.rstrip())


def readable(key: str) -> str:
    """A key of JSON as a label for people: "Exit status" for "exit_status"."""
    return key.replace("_", " ").capitalize()


def print_pairs(pairs: Mapping[str, object]) -> None:
    """One `key: value` per line."""
    for key, value in pairs.items():
        click.echo(f"{key}: {shown(value)}".rstrip())


def say(text: str, quiet: bool = False) -> None:
    """Print a sentence about what was done."""
    if not quiet:
        click.echo(typed(text))


def remark(text: str) -> None:
    """Print a sentence beside the result.

    It goes to standard error, so that a program reads only the result.
    """
    click.echo(typed(text), err=True)


class _Styled(str):
    """A text with colours of ours, and no other control characters."""


def shown(value: object) -> str:
    """A value in a line of text: "" for None, control characters as escapes."""
    if value is None:
        return ""
    if isinstance(value, _Styled):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    return printable(str(value))


def coloured(state: str) -> str:
    """A state with its colour, if the output is a terminal."""
    words = state.replace(":", " ").split()
    colour = _COLOURS.get(words[0]) if words else None
    if not colour or not sys.stdout.isatty():
        return state
    return _Styled(click.style(shown(state), fg=colour))


def local_time(time: str | None) -> str:
    """An ISO 8601 time as local time, with milliseconds."""
    if not time:
        return ""
    try:
        moment = datetime.fromisoformat(time).astimezone()
    except ValueError:
        return time
    return moment.isoformat(sep=" ", timespec="milliseconds").split("+")[0]


def short_duration(seconds: float | None) -> str:
    """A duration for a narrow column: "40 s", "3 min", "2.5 h", "4 d"; "" when it is not known."""
    if seconds is None:
        return ""
    for unit, size, limit in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < size * limit:
            return f"{seconds / size:.1f} h" if unit == "h" else f"{seconds // size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def clock_duration(seconds: float | None, digits: int = 0) -> str:
    """Hours, minutes and seconds: "2:11:05", or "0:00:00.012"; "" when it is not known."""
    if seconds is None:
        return ""
    whole, fraction = divmod(round(max(0.0, seconds) * 10**digits), 10**digits)
    return str(timedelta(seconds=whole)) + (f".{fraction:0{digits}}" if digits else "")


def agreed(question: str, yes: bool, how: str = "To agree in advance, add: -y") -> bool:
    """Whether to go on: `yes` or the answer. Raises KochiError if there is no answer, as without a
    terminal; `how` is its hint."""
    try:
        return yes or click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise
        click.echo(err=True)  # below the question
        raise KochiError("no answer was given; nothing was changed", how) from None


_LOOK_SECONDS = 0.1  # pause between two looks at a followed file
_CHECK_SECONDS = 0.5  # pause between two questions whether it still grows


def show_file(path: Path, follow: bool, has_ended: Callable[[], bool]) -> int:
    """Copy a file to standard output as it is, byte by byte; returns how many there were.

    With `follow`, continue as it grows.
    """
    position = 0
    check = Backoff()
    ended = not follow
    while True:
        position = copy_from(path, position)
        if ended:
            return position
        if check.is_due:
            # One more round copies the output between the last look and the end.
            ended = has_ended()
            check.hold(_CHECK_SECONDS)
        if not ended:
            time.sleep(_LOOK_SECONDS)


def copy_from(path: Path, position: int) -> int:
    """Copy to standard output the bytes after a position; returns the new position."""
    from snakemake_kochi.files import LARGE_BLOCK, copy_stream

    try:
        with path.open("rb") as stream:
            if stream.seek(0, 2) < position:
                # The file began anew: another attempt of the same job.
                position = 0
            stream.seek(position)
            copy_stream(stream, sys.stdout.buffer, LARGE_BLOCK)
            sys.stdout.buffer.flush()
            return stream.tell()
    except FileNotFoundError:
        return position
