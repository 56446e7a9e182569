"""The group of all commands, and the conversion of errors to messages and an exit status."""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from snakemake_kochi import __version__
from snakemake_kochi.errors import ROOM, ConfigError, KochiError, nearest, told
from snakemake_kochi.hints import typed

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, the exit status of shells

# Set where a command comes from another computer; see `remote/arrival.py`.
ARRIVAL = "KOCHI_ARRIVAL"

# Command -> its module, and a line about its purpose.
_COMMANDS = {
    "init": ("snakemake_kochi.cli.init", "Turn a git repository into a project."),
    "profile": ("snakemake_kochi.cli.profile", "Install or list Snakemake profiles."),
    "work": ("snakemake_kochi.cli.workers", "Run the jobs of queues in this terminal."),
    "alloc": ("snakemake_kochi.cli.workers", "Request workers for a queue from the scheduler."),
    "release": ("snakemake_kochi.cli.ending", "Release workers and their allocations."),
    "inspect": ("snakemake_kochi.cli.inspection", "Log in beside a job, on a worker's node."),
    "alloc_interact": ("snakemake_kochi.cli.inspection", "Open a shell on a compute node."),
    "launch": ("snakemake_kochi.cli.launch", "Start a run that goes on after logout."),
    "enqueue": ("snakemake_kochi.cli.enqueue", "Submit one job to a queue."),
    "farm": ("snakemake_kochi.cli.farm", "Run a file of commands, one per line."),
    "interact": ("snakemake_kochi.cli.interactive", "Run a shell or a command as a job, here."),
    "attach": ("snakemake_kochi.cli.interactive", "Attach to a job of kochi interact --keep."),
    "forward": (
        "snakemake_kochi.cli.interactive",
        "Carry the port of kochi interact -p; not for people.",
    ),
    "batch": ("snakemake_kochi.cli.batch", "Run a batch of an experiment."),
    "install": ("snakemake_kochi.cli.install", "Install recipes of dependencies."),
    "run": ("snakemake_kochi.cli.install", "Run a command with installed recipes."),
    "cancel": ("snakemake_kochi.cli.ending", "Cancel waiting and running jobs."),
    "show": ("snakemake_kochi.cli.show", "Show queues, workers, jobs, logs, installs, ..."),
    "trace": ("snakemake_kochi.cli.trace", "Export a run as a trace for Perfetto."),
    "doctor": ("snakemake_kochi.cli.doctor", "Check this node, its filesystems and locks."),
    "clean": ("snakemake_kochi.cli.clean", "Delete what nothing needs any more."),
    "why": ("snakemake_kochi.cli.why", "Tell which run wrote a result, and from which code."),
    "table": ("snakemake_kochi.cli.tables", "Print the table of a batch from a branch."),
    "plot": ("snakemake_kochi.cli.tables", "Draw the figures of a batch from a branch."),
    "check": ("snakemake_kochi.cli.check", "Tell what is worse than its references."),
    "compare": ("snakemake_kochi.cli.compare", "Tell which of two is faster, and how sure."),
    "history": ("snakemake_kochi.cli.history", "Tell since when a batch is faster or slower."),
    "bisect": ("snakemake_kochi.cli.bisect", "Find the commit that made a batch slower."),
    "export": ("snakemake_kochi.cli.export", "Export results for publication, as an RO-Crate."),
    "rerun": ("snakemake_kochi.cli.reproduce", "Run recorded results again, beside the old ones."),
    "reproduce": ("snakemake_kochi.cli.reproduce", "Run recorded results again, and compare."),
    "artifact": ("snakemake_kochi.cli.artifact", "Collect results in a git branch."),
    "machine": ("snakemake_kochi.cli.machine", "Put kochi on a machine behind a login host."),
}

# The objects that have a number, and that a command of that name shows.
_NUMBERED = ("job", "worker")


class Group(click.Group):
    """A group that answers an unknown command with a suggestion.

    `commands_in` maps a command to its module, which is imported when the command is typed, and a
    line of help. In the module the command is called `NAME_command`, or just `command`.
    """

    def __init__(
        self, *args: Any, commands_in: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._commands_in = dict(commands_in or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._commands_in, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._commands_in.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(entry[0])
        command = getattr(module, f"{cmd_name}_command", None) or module.command
        assert isinstance(command, click.Command)
        command.name = cmd_name  # in the form of the command reference in the documentation
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            if name.isdecimal() and (numbered := [each for each in _NUMBERED if each in known]):
                typed = " or: ".join(f"{ctx.command_path} {each} {name[:20]}" for each in numbered)
                ctx.fail(
                    f"there is no command '{name[:20]}'. If it is the number of a "
                    f"{' or a '.join(numbered)}, type: {typed}"
                )
            ctx.fail(f"there is no command '{name}', {nearest(name, known)}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in ("-m", "--machine"):
                raise
            ctx.fail("-m comes after the whole command, as in: kochi show jobs -m MACHINE")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # Of an option without its value click does not say to which command it belongs.
            name = ctx.invoked_subcommand
            command = self.get_command(ctx, name) if name else None
            if error.ctx is None and command is not None:
                error.ctx = click.Context(command, parent=ctx, info_name=name)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self._commands_in:
            return super().format_commands(ctx, formatter)
        # From the table and not from the commands: help for one command would import all of them.
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._commands_in.items()])


@click.group(
    cls=Group,
    commands_in=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.version_option(__version__, prog_name="kochi")
def kochi() -> None:
    """Run benchmarks: recipes, frozen sources, persistent workers, results in git."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, and exit.

    The status is 0, 1 (failed), 2 (wrong usage), 75 (a machine is away), 130 (interrupted), or that
    of a user's command.
    """
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status, with every expected error printed."""
    _prepare_streams()
    try:
        words = None if arguments is None else list(arguments)
        if ARRIVAL in os.environ:
            from snakemake_kochi.remote.arrival import arrive

            arrive()
        # A command that is executed elsewhere needs its words as they were typed.
        status = kochi.main(words, prog_name="kochi", standalone_mode=False, obj=words)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        return _reader_left()
    except (click.Abort, KeyboardInterrupt):  # click makes the one of the other
        return INTERRUPTED
    except click.UsageError as error:
        error.show()
        return WRONG_USAGE
    except click.ClickException as error:
        return _complain(f"kochi: {error.format_message()}")
    except ConfigError as error:
        # A line for each mistake; indented text belongs to the line above it.
        lines = error.message.splitlines()
        prefixed = [line if line.startswith(" ") else f"kochi: {line}" for line in lines]
        return _complain("\n".join(prefixed), error.hint)
    except KochiError as error:
        _complain(f"kochi: {error.message}", error.hint)
        return error.exit_status
    except OSError as error:
        # Imported here: `kochi --help` must not wait for it.
        from snakemake_kochi.files import lacks_room

        return _complain(f"kochi: {told(error)}", ROOM if lacks_room(error) else None)


def _prepare_streams() -> None:
    # The level is set on the handler and not only on the logger: a worker in this process logs
    # more, to its own file.
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.basicConfig(format="kochi: %(message)s", handlers=[handler])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A file name that is not UTF-8 must be shown somehow, and not end the command.
            stream.reconfigure(errors="backslashreplace")


def _complain(message: str, hint: str | None = None) -> int:
    click.echo(typed(message), err=True)
    if hint:
        click.echo(typed(hint), err=True)
    return FAILED


def _reader_left() -> int:
    """End after `kochi show jobs | head -1`: no message is needed, and none is possible at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
