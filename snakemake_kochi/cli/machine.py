"""`kochi machine`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from snakemake_kochi.cli.main import Group
from snakemake_kochi.cli.options import json_option
from snakemake_kochi.cli.output import print_json, print_pairs, readable, remark, say
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import Location, find_location

if TYPE_CHECKING:
    from snakemake_kochi.remote.connection import Connection
    from snakemake_kochi.remote.setup import Host

# Of what `kochi clean` deletes, only versions; what is over in any case goes as well.
_CLEANING = [
    *("clean", "--yes", "--after", "never", "--installs", "0"),
    *("--keep", "installs:*"),
]


@click.group(cls=Group)
def command() -> None:
    """Machines behind a login host: put this package there, and see what is there."""


@command.command("setup")
@click.argument("name", metavar="MACHINE")
@click.option(
    "--python",
    metavar="PROGRAM",
    help="The Python to use there, from 3.11 to 3.14: a path there, or a name on PATH there.",
)
@click.option("--again", is_flag=True, help="Install also what is there already.")
@click.option("--clean", is_flag=True, help="Delete versions there that nothing uses any more.")
def setup_command(name: str, python: str | None, again: bool, clean: bool) -> int:
    """Put this version of kochi, and all that it needs, into KOCHI_ROOT of MACHINE.

    The machine needs no internet: what is missing there travels over ssh. A version that is there
    stays for those who use it. If it is interrupted, type it again.
    """
    from snakemake_kochi.remote.environment import Environment
    from snakemake_kochi.remote.setup import set_up

    location = _behind_a_login_host(name)
    with _connection(location) as connection:
        host = set_up(connection, Environment.of(location.machine), python, again, remark)
        if host.is_set_up and not again:
            say(f"kochi {host.own} is in {host.root} of {name} already.")
        else:
            say(f"kochi {host.own} is now in {host.root} of {name}.")
        if not host.git:
            _say_missing(host)
        words = ["doctor"]
        if clean:
            status = _run_there(location, _CLEANING)
            if status != 0:
                return status
        say(f"$ kochi {shlex.join(words)}")
        return _run_there(location, words)


def _behind_a_login_host(name: str | None) -> Location:
    location = find_location(name)
    if location.machine.login_host is None:
        raise KochiError(
            f"machine '{location.machine.name}' has no login_host: it is this computer, or one "
            "that sees the same KOCHI_ROOT",
            "Nothing needs to be put there. To check it, type: kochi doctor",
        )
    return location


def _connection(location: Location) -> Connection:
    from snakemake_kochi.remote.connection import Connection

    assert location.machine.login_host is not None
    return Connection(location.machine.login_host)


@command.command("show")
@click.argument("name", metavar="MACHINE", required=False)
@json_option
def show_command(name: str | None, as_json: bool) -> int:
    """Show what is on a machine behind a login host: Pythons, versions, what is missing."""
    from snakemake_kochi.remote.environment import Environment
    from snakemake_kochi.remote.setup import look

    location = _behind_a_login_host(name)
    with _connection(location) as connection:
        host = look(connection, Environment.of(location.machine), None)
    found = {
        "machine": location.machine.name,
        "login_host": location.machine.login_host,
        "kochi_root": host.root,
        "git": host.git or None,
        "python": [f"{each.executable} ({each.problem or each.text})" for each in host.pythons],
        "kochi": list(host.installed),
        "kochi_here": host.own,
        "missing": host.lacking,
    }
    if as_json:
        print_json(found)
        return 0
    missing = found.pop("missing")
    print_pairs({readable(key): value or "none" for key, value in found.items()})
    _say_missing(host)
    if not host.is_set_up and not missing:
        remark(f"To put the version from here there, type: {_setup_line(location)}")
    return 0


def _say_missing(host: Host) -> None:
    for each in host.lacking:
        remark(f"Missing there: {each}")


def _setup_line(location: Location) -> str:
    return shlex.join(["kochi", "machine", "setup", location.machine.name])


def _run_there(location: Location, words: Sequence[str]) -> int:
    """Run kochi there, with what kochi.yaml here says about the machine; return its exit status."""
    from snakemake_kochi.remote.command import Needs, run_there

    return run_there(location, words, Needs.CONFIGURATION)
