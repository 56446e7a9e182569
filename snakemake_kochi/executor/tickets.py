"""Snakemake's jobs as tickets: the inner command, the chosen runner, the resources."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.adoption import Identities, outputs_of
from snakemake_kochi.executor.internals import MissingPartsError
from snakemake_kochi.executor.placeholders import UnclearError
from snakemake_kochi.executor.plain import PlainShells
from snakemake_kochi.executor.plugin import RUNNERS
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Resources, ShellJob, Ticket

QUEUE = "kochi_queue"  # the resource in which a job names a queue
# Snakemake uses TBDString for a value that depends on files that do not exist yet.
_NO_AMOUNTS = ("<TBD>", "")


class Tickets:
    """Makes the tickets of one run. `fastest` is one of RUNNERS: the first that may be chosen."""

    def __init__(
        self,
        executor: RealExecutor,
        fastest: str | None,
        controller: str,
        logger: LoggerExecutorInterface,
    ) -> None:
        self._executor = executor
        self._controller = controller
        self._directory: str = executor.workflow.workdir_init
        self._commands = InnerCommands(executor)
        self._choices = Choices(executor.workflow, fastest, logger)
        self._identities = Identities(executor.workflow, self._directory)

    def of(self, job: JobExecutorInterface, resources: Resources) -> Ticket:
        command = self._commands.of(job)
        choice = self._choices.of(job, command)
        return make_ticket(
            job,
            command,
            choice,
            self._directory,
            self._controller,
            self._executor.envvars(),
            resources,
            self._identities.of(job, choice.shell_command),
        )


@dataclass(frozen=True)
class InnerCommand:
    """A job's Snakemake command as an argument list.

    `job_arguments` is the range of the arguments that belong to the job and not to its whole
    workflow. It is None if the range is not known, or if only a shell can execute the command.
    """

    arguments: tuple[str, ...]
    job_arguments: tuple[int, int] | None


class InnerCommands:
    """Makes the inner commands of a run.

    It formats and splits the part that all jobs of a run share only once: this takes Snakemake and
    shlex longer than all other work for a job.
    """

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
        """The parts before and after a job's own arguments.

        None, for good, if the line has several commands (`cd ... &&`) or does not contain these
        arguments.
        """
        line = self._executor.format_job_exec(job)
        before, found, after = line.partition(own)
        parts = tuple(shlex.split(before)), tuple(shlex.split(after))
        # Snakemake quotes data, so an operator is a word of its own.
        has_operator = any(word in ("&&", "||", ";", "|") for part in parts for word in part)
        self._is_plain = bool(own and found) and not has_operator
        return parts if self._is_plain else None


@dataclass(frozen=True)
class Choice:
    """The runner chosen for a job, and in a few words why not a faster one, or "".

    For the runner `shell` there are also a `shell` job and `shell_command`, the rule's command as
    Snakemake displays it.
    """

    runner: str
    why: str = ""
    shell: ShellJob | None = None
    shell_command: str | None = None


class Choices:
    """Chooses for each job the fastest runner that preserves the meaning of its rule."""

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
            # Only the whole command contains its prefix.
            return Choice("command", "precommand" if len(self._allowed) > 1 else "")
        why = ""
        if self._shells is not None:
            try:
                plain = self._shells.of(job)
                return Choice("shell", "", plain.job, plain.command)
            except UnclearError as error:
                why = str(error)
            except Exception as error:
                # Any error: Snakemake will meet it, too, and report it better.
                why = type(error).__name__
        elif "shell" in self._allowed:
            why = "another Snakemake"
        return Choice("zygote" if "zygote" in self._allowed else "command", why)


def make_ticket(
    job: JobExecutorInterface,
    command: InnerCommand,
    choice: Choice,
    directory: str,
    controller: str,
    environment: Mapping[str, str],
    resources: Resources,
    identity: str | None = None,
) -> Ticket:
    """The ticket for a job.

    It contains the full inner Snakemake command, and the data for the chosen runner.
    """
    return Ticket(
        name=str(job.resources.get("kochi_name") or job.name),
        command=command.arguments,
        directory=directory,
        environment=environment,
        resources=resources,
        controller=controller,
        labels=_labels(job, choice, directory),
        identity=identity,
        outputs=outputs_of(job, directory),
        shell=choice.shell,
        job_arguments=None if choice.runner == "command" else command.job_arguments,
    )


def _labels(job: Any, choice: Choice, directory: str) -> dict[str, str]:
    labels = {
        "project": str(_project_of(Path(directory))),
        "rule": job.name,
        "snakemake_job": str(job.jobid),
        "runner": choice.runner,
    }
    if choice.why:
        labels["runner_reason"] = choice.why
    # A group job has no wildcards of its own.
    if not job.is_group() and (wildcards := dict(job.wildcards_dict)):
        labels["wildcards"] = ", ".join(f"{name}={value}" for name, value in wildcards.items())
    return labels


def _project_of(directory: Path) -> Path:
    """The top of the repository that contains a working directory, else the directory itself."""
    candidates = (directory, *directory.parents)
    return next((path for path in candidates if (path / ".git").exists()), directory)


def queue_of(job: JobExecutorInterface, machine: MachinePaths) -> str | None:
    """The queue that a job names in its resource `kochi_queue`, or None.

    Raises KochiError, naming the rule, for an invalid name.
    """
    queue = job.resources.get(QUEUE)
    if queue is None or queue == "":
        return None
    try:
        return machine.queue(str(queue)).name
    except KochiError as error:
        raise KochiError(
            f"rule {job.name}, resource {QUEUE}: {error.message}", error.hint
        ) from error


def resources_of(job: JobExecutorInterface) -> Resources:
    """The resources that a job requests.

    Raises KochiError, naming the rule, for an invalid resource.
    """
    runtime = _amount(job, "runtime", 1)
    return Resources(
        cores=max(1, job.threads),
        exclusive=bool(job.resources.get("kochi_exclusive", 0)),
        pinned=bool(job.resources.get("kochi_pinned", 1)),
        memory_mb=_amount(job, "mem_mb", 0),
        gpus=_amount(job, "gpu", 0) or 0,
        # Snakemake counts it in minutes.
        runtime_seconds=None if runtime is None else 60 * runtime,
    )


def _amount(job: JobExecutorInterface, name: str, least: int) -> int | None:
    """A numeric resource; None if the job has none, or if it is not known before the job runs."""
    value = job.resources.get(name)
    if value is None or value in _NO_AMOUNTS:
        return None
    number = _number(value)
    if number is None or number < least:
        raise KochiError(
            f"rule {job.name}, resource {name}: {value} cannot be used: a number from {least} was "
            "expected"
        )
    return number


def _number(value: object) -> int | None:
    """A number, also one written as text, as a profile may contain it."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return math.ceil(value) if isinstance(value, int | float) else None
