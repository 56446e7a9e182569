"""`kochi interact` and `kochi attach`."""

from __future__ import annotations

import contextlib
import os
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from snakemake_kochi.cli.enqueue import submit
from snakemake_kochi.cli.job_options import CommandOrFile, surroundings_options
from snakemake_kochi.cli.options import JOB, machine_option
from snakemake_kochi.cli.output import remark
from snakemake_kochi.enqueue.request import Request, Terminal
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import find_location

if TYPE_CHECKING:
    from snakemake_kochi.location import Location
    from snakemake_kochi.terminal.address import Address
    from snakemake_kochi.terminal.forwarding import ForwardedElsewhere, Forwarding

# Where another computer forwards the port: the word by which it finds the job.
FORWARDED = "KOCHI_FORWARDED"

_port_option = click.option(
    *("-p", "--forward-port", "port"),
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Carry connections to 127.0.0.1:PORT of this computer to $KOCHI_FORWARD_PORT of the job.",
)
_MOST_JOBS = 10_000  # that are looked through for one


@click.command(cls=CommandOrFile, context_settings={"allow_interspersed_args": False})
@machine_option
@surroundings_options
@_port_option
@click.option(
    "--keep",
    is_flag=True,
    help="Let the job go on without its terminal; kochi attach JOB comes back to it.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND...]")
def interact_command(machine: str | None, port: int | None, keep: bool, **typed: object) -> int:
    """Run a job in this terminal: a shell, a command, or a shell for FILE.yaml NAME=VALUE...

    The job waits in the queue as any other; Ctrl-C cancels it while it waits. With FILE.yaml, the
    experiment is built, and its run script is in the history of the shell. The exit status is
    that of the shell or command.

    The job ends with this terminal, unless --keep is given. Ctrl-] pressed three times in a second
    leaves it.
    """
    words = typed["words"]
    assert isinstance(words, tuple)
    _require_terminal("kochi enqueue -q QUEUE -- COMMAND")
    # Imported here: a command line that is wrong does not wait for them.
    from snakemake_kochi.phases.job import TERMINAL_VARIABLES
    from snakemake_kochi.terminal.screen import size_of_terminal
    from snakemake_kochi.terminal.session import Session

    environment = {name: os.environ[name] for name in TERMINAL_VARIABLES if os.environ.get(name)}
    elsewhere = os.environ.get(FORWARDED, "")
    size = size_of_terminal(0, 1)
    terminal = Terminal(size, keep, port is not None, environment, elsewhere)
    request = Request(**typed, terminal=terminal)  # type: ignore[arg-type]
    # Before the job is submitted: the port may be taken.
    with _forwarded(port) as forwarding:
        location, ticket = submit(machine, request)
        return Session(location, ticket.job, _say, not keep, forwarding).run()


@click.command()
@machine_option
@_port_option
@click.argument("job", type=JOB, metavar="JOB")
def attach_command(machine: str | None, port: int | None, job: int) -> int:
    """Attach this terminal to a job of kochi interact --keep.

    Its recent output is shown again. A terminal that it has is detached. Ctrl-] pressed three
    times in a second detaches this one; the job goes on.
    """
    _require_terminal("kochi show log job JOB -f")
    from snakemake_kochi.terminal.session import attach

    location = find_location(machine)
    location.require_here()
    location.secure(location.machine_paths.directory)
    with _forwarded(port) as forwarding:
        return attach(location, job, _say, forwarding)


@click.command()
@machine_option
@click.argument("job", metavar="JOB")
def forward_command(machine: str | None, job: str) -> int:
    """The part of -p on another computer: `kochi interact -p PORT` starts it, and nobody types it.

    It carries connections, through standard input and output, to the port of a job.
    """
    if sys.stdin.isatty():
        raise KochiError(
            "this is no command for people: it carries the connections of -p to another computer",
            "To carry those to a port of this one, type: kochi attach JOB -p PORT",
        )
    from snakemake_kochi.terminal.become import become
    from snakemake_kochi.terminal.connect import way_to_port

    location = find_location(machine, asks=True)
    location.require_here()
    location.secure(location.machine_paths.directory)
    return become(way_to_port(location, _address(location, job)))


def _address(location: Location, job: str) -> Address:
    """The terminal of a job, which a number names or the word of another computer."""
    from snakemake_kochi.queue.views import find_job, list_jobs
    from snakemake_kochi.terminal.address import read_address, terminal_of

    machine = location.machine_paths
    found = [find_job(machine, int(job)).job] if job.isdecimal() else []
    for view in [] if found else list_jobs(machine, limit=_MOST_JOBS):
        if view.ticket is not None and view.ticket.labels.get("forwarded") == job:
            found.append(view.job)
    address = read_address(terminal_of(machine, found[0])) if found else None
    if address is None:
        # In one line: the other computer shows the last one.
        raise KochiError("the job has no terminal yet, or has ended: it has no port")
    return address


def _forwarded(
    port: int | None,
) -> AbstractContextManager[Forwarding | ForwardedElsewhere | None]:
    if port is None:
        return contextlib.nullcontext()
    from snakemake_kochi.terminal.forwarding import ForwardedElsewhere, forwarded

    if os.environ.pop(FORWARDED, ""):
        return contextlib.nullcontext(ForwardedElsewhere(port))
    return forwarded(port, _say)


def _say(text: str) -> None:
    # The window may have been closed.
    with contextlib.suppress(OSError):
        remark(text)


def _require_terminal(instead: str) -> None:
    if not sys.stdin.isatty():
        raise KochiError(
            "standard input is not a terminal, and this command joins a terminal with a job",
            f"Without a terminal, type: {instead}",
        )
