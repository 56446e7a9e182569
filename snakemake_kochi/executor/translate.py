"""A Snakemake job as a ticket, and a result as a message for people."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.choice import Choice
from snakemake_kochi.executor.identity import outputs_of
from snakemake_kochi.executor.inner import InnerCommand
from snakemake_kochi.files import last_lines
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Resources, Result, Ticket

QUEUE = "kochi_queue"  # the resource in which a job names one
_LAST_LINES = 20
# TBDString is what Snakemake has for a value that depends on files that are not there yet.
_NO_AMOUNTS = ("<TBD>", "")
_INNER_WORDS = (
    "Building DAG of jobs...",
    "Using shell: ",
    "Select jobs to execute...",
    "Execute 1 jobs...",
)
# As subprocess.CalledProcessError puts it.
_COMMAND_STATUS = re.compile(r"non-zero exit status \d+|died with <Signals\.\w+: \d+>")


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
    """The ticket for a job: its full inner Snakemake command, and what the chosen runner needs."""
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


def queue_of(job: JobExecutorInterface, machine: MachinePaths) -> str | None:
    """The queue a job names in its resource `kochi_queue`, or None.

    Raises KochiError, naming the rule, for a name that cannot be used.
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
    """What a job asks for.

    Raises KochiError, naming the rule, for a resource that cannot be used.
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
    """A resource that is a number; None when the job has none, or one not known before it runs."""
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
    """A number, also one written as a text, as a profile may have it."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return math.ceil(value) if isinstance(value, int | float) else None


def project_of(directory: Path) -> Path:
    """The top of the repository that a working directory is in, else the directory itself."""
    candidates = (directory, *directory.parents)
    return next((path for path in candidates if (path / ".git").exists()), directory)


def wildcards_of(job: Any) -> Mapping[str, str]:
    """The wildcards of a job; a group job has none of its own."""
    return {} if job.is_group() else dict(job.wildcards_dict)


def _labels(job: JobExecutorInterface, choice: Choice, directory: str) -> dict[str, str]:
    labels = {
        "project": str(project_of(Path(directory))),
        "rule": job.name,
        "snakemake_job": str(job.jobid),
        "runner": f"{choice.runner} ({choice.why})" if choice.why else choice.runner,
    }
    if wildcards := wildcards_of(job):
        labels["wildcards"] = ", ".join(f"{name}={value}" for name, value in wildcards.items())
    return labels


def failure_message(ticket: Ticket, result: Result) -> str:
    """Say how and where a job failed, and how its log ends."""
    ending = last_lines(Path(result.log), 2 * _LAST_LINES)
    lines = [f"kochi job {result.job} on node {result.node or '(none)'}: {result.describe()}"]
    # The process that ended is the inner Snakemake, which always ends with 1; what the rule's own
    # command ended with, it says in its log.
    if own := _COMMAND_STATUS.search("\n".join(ending)):
        lines.append(f"the rule's command: {own[0]}")
    if wildcards := ticket.labels.get("wildcards"):
        lines.append(f"wildcards: {wildcards}")
    shown = _without_report(ending)[-_LAST_LINES:]
    lines += [f"    {line}" for line in shown]
    return "\n        ".join(lines)


def _without_report(lines: Sequence[str]) -> list[str]:
    """The last lines of a log without what the inner Snakemake says of itself: the controller's
    own report says it again, and the job's words would be lost in it."""
    end = next((i for i, line in enumerate(lines) if line == "RuleException:"), len(lines))
    kept = [line for line in lines[:end] if not line.startswith(_INNER_WORDS)]
    return kept or list(lines)
