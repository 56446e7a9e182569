"""The page for Kochi's users has every command and option of Kochi's, and says what is true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import click
import pytest
from support import REPOSITORY

from snakemake_kochi.cli.main import kochi

PAGE = REPOSITORY / "docs" / "from-kochi.md"


@dataclass(frozen=True)
class Original:
    """A command of Kochi's: its options that take a value, once or (with a "*") any number of
    times, those that take none, and the words that it may be given beside them."""

    values: tuple[str, ...] = ("-m --machine",)
    flags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def options(self) -> Iterator[tuple[str, ...]]:
        for option in (*self.values, *self.flags):
            yield tuple(option.removesuffix(" *").split())


_M = "-m --machine"
_D = "-d --dependency *"
_G = "-g --git-remote"
# What `--help` of Kochi says, as of its commit acb87e7, without what it hides as internal.
ORIGINAL = {
    "work": Original((_M, "-q --queue"), ("-b --blocking",)),
    "alloc": Original(
        (_M, "-q --queue", "-n --nodes *", "-d --duplicates", "-t --time-limit"),
        ("-f --follow", "-b --blocking"),
    ),
    "alloc_interact": Original((_M, "-n --nodes", "-q --queue")),
    "enqueue": Original(
        (_M, "-q --queue", _D, "-n --name", _G), ("-c --with-context",), ("echo", "foo")
    ),
    "interact": Original((_M, "-q --queue", _D, _G, "-p --forward-port"), ("-c --with-context",)),
    "batch": Original((_M, _G), (), ("fib.yaml", "batch_test")),
    "cancel": Original((_M,), ("-a --all",), ("1", "2")),
    "inspect": Original((_M,), (), ("1",)),
    "run": Original((_M, _D), (), ("echo", "foo")),
    "install": Original((_M, _D, "-q --queue")),
    "artifact init": Original((), (), ("../artifacts",)),
    "artifact sync": Original(),
    "artifact discard": Original((_M,), ("-y --yes",)),
    "show queues": Original(),
    "show workers": Original((_M, "-q --queue *"), ("-a --all",)),
    "show jobs": Original(
        (_M, "-l --limit", "-q --queue *", "-n --name *"), ("-t --show-terminated", "-a --all")
    ),
    "show job": Original((_M,), (), ("1",)),
    "show installs": Original(),
    "show install": Original((_M, _D)),
    "show projects": Original(),
    "show log worker": Original((_M,), (), ("1",)),
    "show log job": Original((_M,), (), ("1",)),
    "show log install": Original((_M, _D)),
    "show path project": Original((_M,), ("-f --force", "--is-artifact"), ("sorting",)),
}
VALUES = {"-l": "3", "-d": "2", "-p": "8080"}


@dataclass(frozen=True)
class Row:
    """A row of the page: some options of a command, and whether they are here."""

    command: str
    options: tuple[str, ...]
    verdict: str


def rows() -> list[Row]:
    _, _, after = PAGE.read_text("utf-8").partition("<!-- options of Kochi -->\n")
    found = []
    for line in after.partition("\n\n")[0].splitlines()[2:]:
        typed, verdict, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:4])
        words = typed.strip("`").split()
        names = [word for word in words if not word.startswith("-")]
        options = tuple(word for word in words if word.startswith("-"))
        found.append(Row(" ".join(names), options, verdict))
    return found


def here(name: str) -> click.Command | None:
    """A command of ours, None if there is none."""
    command: click.Command = kochi
    for word in name.split():
        found = (
            command.get_command(click.Context(command), word)
            if isinstance(command, click.Group)
            else None
        )
        if found is None:
            return None
        command = found
    return command


def spellings(command: click.Command) -> dict[str, click.Option]:
    options = [each for each in command.params if isinstance(each, click.Option)]
    return {spelling: option for option in options for spelling in option.opts}


def test_every_command_and_option_of_the_original_has_a_row_and_no_others() -> None:
    for name, original in ORIGINAL.items():
        listed = [option for row in rows() if row.command == name for option in row.options]
        assert sorted(listed) == sorted(option[0] for option in original.options), name
    assert {row.command for row in rows()} == set(ORIGINAL)
    assert {row.verdict for row in rows()} <= {"the same", "not there yet", "never"}


def test_what_the_rows_say_is_so() -> None:
    for row in rows():
        assert_is_so(row)


def assert_is_so(row: Row) -> None:
    command = here(row.command)
    if row.verdict == "not there yet":
        # When it comes, the row must change.
        here_already = set(row.options) & set(spellings(command)) if command else set()
        assert command is None or (row.options and not here_already), row
        return
    assert command is not None, row
    known = spellings(command)
    if row.verdict == "never":
        assert row.options and not set(row.options) & set(known), row
        return
    _takes_what_the_original_takes(command, row)


def _takes_what_the_original_takes(command: click.Command, row: Row) -> None:
    original, known = ORIGINAL[row.command], spellings(command)
    help_text = command.get_help(click.Context(command, info_name=row.command))
    for option in original.options:
        if option[0] not in row.options:
            continue
        for spelling in option:
            assert spelling in known, f"{row.command} {spelling}"
            assert re.search(rf"(?<![\w-]){spelling}(?![\w-])", help_text), spelling
        assert len({id(known[spelling]) for spelling in option}) == 1, option
    # With all options at once, in either spelling, the most often used kinds of value and the
    # words; repeated where the original takes them repeatedly.
    for position in (0, -1):
        typed: list[str] = []
        for text in original.values:
            option = tuple(text.removesuffix(" *").split())
            if option[0] not in row.options:
                continue
            value = _value(row.command, option)
            typed += [option[position], value] * (2 if text.endswith("*") else 1)
        for text in original.flags:
            if text.split()[0] in row.options:
                typed.append(text.split()[position])
        context = click.Context(command, info_name=row.command)
        with context:
            # Raises click.UsageError.
            command.make_context(row.command, [*typed, *original.words])


def _value(command: str, option: tuple[str, ...]) -> str:
    if option == ("-d", "--dependency"):
        return "massivethreads:release"
    return VALUES.get(option[0], "1" if option[0] == "-t" else "name")


def test_a_row_that_says_what_is_not_so_would_be_found() -> None:
    for row in (
        Row("show jobs", ("-m",), "not there yet"),
        Row("show jobs", ("-t",), "never"),
        Row("no_such_command", ("-m",), "the same"),
    ):
        with pytest.raises(AssertionError):
            assert_is_so(row)
