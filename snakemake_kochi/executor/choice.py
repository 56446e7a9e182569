"""Which runners may execute a job: the fastest that keeps all that its rule means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.executor.inner import InnerCommand
from snakemake_kochi.executor.placeholders import UnclearError
from snakemake_kochi.executor.plain import MissingPartsError, PlainShells
from snakemake_kochi.executor.settings import RUNNERS
from snakemake_kochi.queue import ShellJob


@dataclass(frozen=True)
class Choice:
    """The fastest runner of a job, and why none faster is used, in a few words; "" if there is
    none. `shell` is there for the runner of that name, and then `shell_command` is what the rule's
    command looks like to people."""

    runner: str
    why: str = ""
    shell: ShellJob | None = None
    shell_command: str | None = None


class Choices:
    """Chooses for the jobs of one workflow; `fastest` is one of RUNNERS, the first to be used."""

    def __init__(self, workflow: Any, fastest: str | None, logger: LoggerExecutorInterface) -> None:
        self._allowed = RUNNERS[RUNNERS.index(fastest or RUNNERS[0]) :]
        self._shells: PlainShells | None = None
        if "shell" in self._allowed:
            try:
                self._shells = PlainShells(workflow)
            except MissingPartsError as error:
                logger.warning(
                    f"Shell commands are not executed directly, but by a Snakemake: the one "
                    f"installed has no {error}."
                )

    def of(self, job: Any, command: InnerCommand) -> Choice:
        if command.job_arguments is None:
            # With what goes before it, say, which only this command has.
            return Choice("command", "precommand" if len(self._allowed) > 1 else "")
        why = ""
        if self._shells is not None:
            try:
                plain = self._shells.of(job)
                return Choice("shell", "", plain.job, plain.command)
            except UnclearError as error:
                why = str(error)
            except Exception as error:
                # Whatever it is: Snakemake will meet it, too, and say it better.
                why = type(error).__name__
        elif "shell" in self._allowed:
            why = "another Snakemake"
        return Choice("zygote" if "zygote" in self._allowed else "command", why)
