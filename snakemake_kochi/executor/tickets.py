"""Snakemake's jobs as tickets: the inner command, the chosen runner, the files, the identity.

An identity says what makes a job of Snakemake the same work as a job of an earlier run. If a part
of it is missing or uncertain, the job has no identity and is executed again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface
from snakemake_interface_executor_plugins.utils import encode_target_jobs_cli_args, format_cli_arg

from snakemake_kochi.executor.internals import (
    MissingPartsError,
    UnclearError,
    path_of_source,
    source_of_script,
)
from snakemake_kochi.executor.plain import PlainShells, relative_to
from snakemake_kochi.executor.plugin import changed_state
from snakemake_kochi.queue.paused import BATCH, EXPERIMENT
from snakemake_kochi.queue.spreading import SPREAD
from snakemake_kochi.tickets.ticket import Resources, ShellJob, Ticket

_LONGEST_PROJECT = 30  # characters of a run's name, so that its rules have room

# The resource of a job with the label SPREAD of its ticket.
SPREAD_RESOURCE = "kochi_spread"
# The cheapest first.
RUNNERS = ("phase", "shell", "zygote", "command")


class Tickets:
    """Makes the tickets of one run."""

    def __init__(
        self,
        executor: RealExecutor,
        fastest: str | None,
        logger: LoggerExecutorInterface,
        inheriting: str | None,
    ) -> None:
        """`fastest`: one of RUNNERS, the first that may be chosen. `inheriting`: the queue whose
        workers are children of this process, if any."""
        self._executor = executor
        self._inheriting = inheriting
        self._directory: str = executor.workflow.workdir_init
        self._place = _logical(self._directory)
        self._commands = InnerCommands(executor)
        self._choices = Choices(executor.workflow, fastest, logger)
        self._identities = Identities(executor.workflow, self._directory)

    def of(self, job: JobExecutorInterface, resources: Resources, queue: str) -> Ticket:
        """The ticket of a job that goes to this queue."""
        command = self._commands.of(job)
        choice = self._choices.of(job, command, queue == self._inheriting)
        return Ticket(
            name=str(job.resources.get("kochi_name") or job.name),
            command=command.arguments,
            directory=self._directory,
            environment={**self._place, **self._executor.envvars()},
            resources=resources,
            labels=_labels(job, choice, self._directory),
            identity=self._identities.of(job, choice.shell_command),
            outputs=outputs_of(job, self._directory),
            logs=tuple(str(path) for one in single_jobs(job) for path in one.log),
            shell=choice.shell,
            job_arguments=None if choice.runner == "command" else command.job_arguments,
        )


def _logical(directory: str) -> dict[str, str]:
    """PWD, if it names the directory by another path, as after `cd` through a symbolic link."""
    path = os.environ.get("PWD", "")
    with suppress(OSError):
        if os.path.isabs(path) and path != directory and os.path.samefile(path, directory):
            return {"PWD": path}
    return {}


# ---- inner commands


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


def with_readable_targets(arguments: str, job: Any) -> str:
    """A job's own arguments, from which a Snakemake reads the wildcards as they are.

    Snakemake splits the values in `--target-jobs` at commas, and takes quotes from their ends. Jobs
    with such values are named by a file that they make.
    """
    targets, files = [], []
    for one in single_jobs(job):
        values = one.wildcards_dict.values()
        if any("," in value or value != value.strip("'\"") for value in map(str, values)):
            files.append(str(one.output[0]))
        else:
            targets += one.get_target_spec()
    if not files:
        return arguments
    said = format_cli_arg("--target-jobs", encode_target_jobs_cli_args(job.get_target_spec()))
    remaining = format_cli_arg(
        "--target-jobs", encode_target_jobs_cli_args(targets), skip=not targets
    )
    # First: an option with several values would take the files for its own.
    named = f"{shlex.join(files)} --force {remaining}".strip()
    return arguments.replace(said, named, 1)


# ---- runners


@dataclass(frozen=True)
class Choice:
    """The runner chosen for a job, and in a few words why not a faster one, or "".

    For the runners `phase` and `shell` there are also a `shell` job and `shell_command`, the rule's
    command as Snakemake displays it.
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
        self._changed = changed_state()
        if "shell" in self._allowed:
            try:
                self._shells = PlainShells(workflow, "phase" in self._allowed)
            except MissingPartsError as error:
                logger.warning(
                    "Each shell command is executed by a Snakemake of its own, not directly: the "
                    f"installed version of Snakemake has no {error}."
                )

    def of(self, job: Any, command: InnerCommand, inherits: bool) -> Choice:
        """Choose for a job; `inherits`: whether its worker is a child of this process."""
        if command.job_arguments is None:
            # Only the whole command contains its prefix.
            return Choice("command", "precommand" if len(self._allowed) > 1 else "")
        why = ""
        if self._shells is not None:
            try:
                if self._changed and not inherits:
                    # Where the Snakefile is read again, it does the same again.
                    raise UnclearError(f"{self._changed} changed")
                shell, command_shown = self._shells.of(job)
                return Choice("phase" if shell.phase else "shell", "", shell, command_shown)
            except UnclearError as error:
                why = str(error)
            except Exception as error:
                # Any error: Snakemake will meet it, too, and report it better.
                why = type(error).__name__
        elif "shell" in self._allowed:
            why = "another Snakemake"
        return Choice("zygote" if "zygote" in self._allowed else "command", why)


# ---- tickets


def _labels(job: Any, choice: Choice, directory: str) -> dict[str, str]:
    labels = {
        "project": str(_project_of(Path(directory))),
        "rule": job.name,
        "snakemake_job": str(job.jobid),
        "runner": choice.runner,
    }
    if choice.why:
        labels["runner_reason"] = choice.why
    if spread := job.resources.get(SPREAD_RESOURCE):
        labels[SPREAD] = str(spread)
    # A group job has no wildcards of its own.
    if not job.is_group() and (wildcards := dict(job.wildcards_dict)):
        labels["wildcards"] = ", ".join(f"{name}={value}" for name, value in wildcards.items())
    return labels | _batch_of(job)


def _batch_of(job: Any) -> dict[str, str]:
    """The params of a job of the rule library that say to which batch it belongs, if any."""
    if job.is_group():
        return {}
    with suppress(Exception):  # any error: Snakemake will meet it, too, and report it better
        found = {name: job.params.get(name) for name in (EXPERIMENT, BATCH)}
        if all(isinstance(value, str) and value for value in found.values()):
            return found
    return {}


@functools.cache  # a run asks for each of its jobs
def _project_of(directory: Path) -> Path:
    """The top of the repository that contains a working directory, else the directory itself."""
    candidates = (directory, *directory.parents)
    return next((path for path in candidates if (path / ".git").exists()), directory)


def label_of_run(workflow: Any, directory: str) -> str:
    """What a run is called: its project and the rules of its jobs, "fib-build+run".

    The names of its allocations begin with it. Administrators and their accounting see those.
    """
    project = _project_of(Path(directory)).name[:_LONGEST_PROJECT]
    with suppress(Exception):  # a DAG that another version of Snakemake keeps elsewhere
        rules = {job.name for job in workflow.dag.needrun_jobs() if not job.is_local}
        return f"{project}-{'+'.join(sorted(rules))}" if rules else project
    return project


# ---- the files that jobs write


def outputs_of(job: Any, directory: str) -> tuple[str, ...]:
    """The files that a job writes, relative to the directory if they are below it."""
    paths = (str(path) for one in single_jobs(job) for path in one.output)
    return tuple(dict.fromkeys(relative_to(path, directory) for path in paths))


def outputs_of_run(workflow: Any, directory: str) -> set[str] | None:
    """All files that a run makes, in the form of `outputs_of`.

    None if more of them may become known during the run, or if they cannot be determined.
    """
    try:
        if any(rule.is_checkpoint for rule in workflow.rules):
            return None
        return {path for job in workflow.dag.needrun_jobs() for path in outputs_of(job, directory)}
    except Exception:
        return None


def single_jobs(job: Any) -> list[Any]:
    return list(job.jobs) if job.is_group() else [job]


# ---- identities


class _UnknownError(Exception):
    """The identity cannot be determined with certainty."""


class Identities:
    """The identities of the jobs of one workflow: 64 hexadecimal digits, or None.

    Two jobs have the same identity when the same code does the same with the same files. It covers
    directory, rule, wildcards, files, params, the shell command, threads, software environment, all
    Snakefiles and scripts, the config, and time and size of each input. It does not cover the
    values of the environment, and modules that a Snakefile or a script imports.
    """

    def __init__(self, workflow: Any, directory: str) -> None:
        self._workflow = workflow
        self._directory = directory
        self._files: dict[tuple[str, int, int], str] = {}
        self._run = self._of_run()

    def of(self, job: Any, shell_command: str | None = None) -> str | None:
        """The identity of a job; costs a stat(2) for each input.

        `shell_command` is the value of `job.shellcmd`, if it is known already: computing it takes
        as long as all other work here.
        """
        if self._run is None:
            return None
        try:
            jobs = sorted(single_jobs(job), key=lambda one: (one.rule.name, *one.output))
            made = {str(path) for one in jobs for path in one.output} if len(jobs) > 1 else set()
            return _digest([self._run, [self._of_one(one, made, shell_command) for one in jobs]])
        except Exception:
            # Any error: Snakemake will meet it, too, and report it better.
            return None

    def _of_run(self) -> str | None:
        try:
            workflow = self._workflow
            sources = [self._content(source) for source in workflow.included]
            return _digest([self._directory, sources, _canonical(workflow.config)])
        except Exception:
            return None

    def _of_one(self, job: Any, made: set[str], shell_command: str | None) -> list[Any]:
        """The data that determine one job; `made` are the files that its own group makes."""
        rule = job.rule
        flagged = getattr(job, "pipe_or_service_output", ())
        if flagged or rule.is_cwl or rule.is_template_engine or not _is_local(job):
            raise _UnknownError
        return [
            rule.name,
            _canonical(dict(job.wildcards_dict)),
            [str(path) for path in job.output],
            [str(path) for path in job.log],
            str(job.benchmark),
            _canonical(list(job.params)),
            _canonical(list(job.params.keys())),
            job.shellcmd if shell_command is None else shell_command,
            job.threads,
            self._script(job),
            self._software(job),
            [_seen(str(path), made) for path in job.input],
            _canonical((getattr(rule, "module_globals", None) or {}).get("config")),
        ]

    def _script(self, job: Any) -> list[str | None]:
        rule = job.rule
        if rule.wrapper is not None:
            if str(rule.wrapper).startswith("file:"):
                raise _UnknownError
            return [str(rule.wrapper), getattr(self._workflow, "wrapper_prefix", None)]
        source = source_of_script(job)
        return [] if source is None else [self._content(source)]

    def _software(self, job: Any) -> list[Any]:
        parts = [str(job.container_img_url), str(job.env_modules)]
        if (spec := job.conda_env_spec) is not None:
            for key in ("name", "dir"):
                parts.append(str(getattr(spec, key, None)))
            file = getattr(spec, "file", None)
            parts.append("" if file is None else self._content(file))
        return parts

    def _content(self, source: Any) -> str:
        """A digest of a source file."""
        path = path_of_source(source, self._workflow)
        found = os.stat(path)
        key = (path, found.st_mtime_ns, found.st_size)
        if key not in self._files:
            self._files[key] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return self._files[key]


def _is_local(job: Any) -> bool:
    """Whether all of its files are on this filesystem and not in some storage."""
    return not any(getattr(path, "is_storage", False) for path in (*job.input, *job.output))


def _seen(path: str, made: Iterable[str]) -> list[Any]:
    """The current state of a file: path, time in nanoseconds and size."""
    if path in made:
        return [path]
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return [path, None]
    stamp = None
    if os.path.isdir(path):
        try:
            # Snakemake keeps the time of an output directory in this file.
            stamp = os.stat(os.path.join(path, ".snakemake_timestamp")).st_mtime_ns
        except FileNotFoundError:
            stamp = None
    return [path, found.st_mtime_ns, found.st_size, stamp]


def _canonical(value: Any) -> Any:
    """The same JSON for equal values in two processes.

    Raises _UnknownError for values without one.
    """
    if isinstance(value, str):
        return str(value)  # Snakemake's own kinds of text are among them.
    if value is None or isinstance(value, bool | int | float | bytes | complex | range | PurePath):
        return [type(value).__name__, repr(value)]
    if isinstance(value, Mapping):
        pairs = [[_canonical(key), _canonical(item)] for key, item in value.items()]
        return ["mapping", sorted(pairs, key=json.dumps)]
    if isinstance(value, list | tuple):
        return ["list", [_canonical(item) for item in value]]
    if isinstance(value, set | frozenset):
        return ["set", sorted((_canonical(item) for item in value), key=json.dumps)]
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _canonical(value.item())
    # The text of other objects may contain an address, or not all of their contents.
    raise _UnknownError


def _digest(parts: Any) -> str:
    text = json.dumps(parts, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
