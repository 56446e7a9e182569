"""A group whose commands are imported when they are typed: each starts as fast as it can."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from snakemake_kochi.errors import nearest


class LazyGroup(click.Group):
    """`commands_in` maps a command to its module and a line of help; in the module the command is
    called `command`, or has the name of the command with `_command` appended."""

    def __init__(
        self, *args: Any, commands_in: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._commands_in = dict(commands_in or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._commands_in, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._commands_in.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(place[0])
        command = getattr(module, f"{cmd_name}_command", None) or module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"there is no command '{name}', {nearest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table and not from the commands: help for one would import all of them.
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._commands_in.items()])
