"""The command of a job's inner Snakemake, as an argument list."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface


@dataclass(frozen=True)
class InnerCommand:
    """`job_arguments`: which range of the arguments is the job's own and not its whole workflow's;
    None where that cannot be told, or where it takes a shell to execute the command."""

    arguments: tuple[str, ...]
    job_arguments: tuple[int, int] | None


class InnerCommands:
    """What is the same for all jobs of a run is made once: to format it, and to split it, takes
    Snakemake and shlex longer than all else that is done for a job."""

    def __init__(self, executor: RealExecutor) -> None:
        self._executor = executor
        self._around: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._is_plain = True

    def of(self, job: JobExecutorInterface) -> InnerCommand:
        own = self._executor.get_job_args(job)
        if self._around is None and self._is_plain:
            self._around = self._split(job, own)
        if self._around is None:
            line = self._executor.format_job_exec(job)
            return InnerCommand(("/bin/sh", "-c", line), None)
        before, after = self._around
        arguments = tuple(shlex.split(own))
        start = len(before)
        return InnerCommand((*before, *arguments, *after), (start, start + len(arguments)))

    def _split(
        self, job: JobExecutorInterface, own: str
    ) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """What stands before and after a job's own arguments; None, for good, where the line is
        more than one command (`cd ... &&`), or the arguments are not found in it."""
        line = self._executor.format_job_exec(job)
        before, found, after = line.partition(own)
        parts = tuple(shlex.split(before)), tuple(shlex.split(after))
        self._is_plain = bool(own and found) and not _is_for_a_shell([*parts[0], *parts[1]])
        return parts if self._is_plain else None


def _is_for_a_shell(words: list[str]) -> bool:
    # Snakemake quotes what is data, so an operator is a word of its own.
    return any(word in ("&&", "||", ";", "|") for word in words)
