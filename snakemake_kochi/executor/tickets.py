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
    """Makes the tickets of one run.

    It formats and splits the part of the inner command that all jobs share only once: this takes
    Snakemake and shlex longer than all other work for a job.
    """

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
        self._around: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._has_whole_lines = False
        self._identities = Identities(executor.workflow, self._directory)
        self._allowed = RUNNERS[RUNNERS.index(fastest or RUNNERS[0]) :]
        self._shells: PlainShells | None = None
        self._changed = changed_state()
        if "shell" in self._allowed:
            try:
                self._shells = PlainShells(executor.workflow, "phase" in self._allowed)
            except MissingPartsError as error:
                logger.warning(
                    "Each shell command is executed by a Snakemake of its own, not directly: the "
                    f"installed version of Snakemake has no {error}."
                )

    def of(self, job: JobExecutorInterface, resources: Resources, queue: str) -> Ticket:
        """The ticket of a job that goes to this queue."""
        command, own = self._command(job)
        if own is None:
            # Only the whole command contains its prefix.
            choice = Choice("command", "precommand" if len(self._allowed) > 1 else "")
        else:
            choice = self._choose(job, queue == self._inheriting)
        return Ticket(
            name=str(job.resources.get("kochi_name") or job.name),
            command=command,
            directory=self._directory,
            environment={**self._place, **self._executor.envvars()},
            resources=resources,
            labels=_labels(job, choice, self._directory),
            identity=self._identities.of(job, choice.shell_command),
            outputs=outputs_of(job, self._directory),
            logs=tuple(str(path) for one in single_jobs(job) for path in one.log),
            shell=choice.shell,
            job_arguments=None if choice.runner == "command" else own,
        )

    def _command(self, job: JobExecutorInterface) -> tuple[tuple[str, ...], tuple[int, int] | None]:
        """A job's Snakemake command, and the range of the arguments that belong to the job and not
        to its whole workflow; None if that is not known, or if only a shell can execute it."""
        own = self._executor.get_job_args(job)
        if self._around is None and not self._has_whole_lines:
            self._around = self._split(self._executor.format_job_exec(job), own)
            self._has_whole_lines = self._around is None
        if self._around is None:
            return ("/bin/sh", "-c", self._executor.format_job_exec(job)), None
        before, after = self._around
        arguments = tuple(shlex.split(own))
        start = len(before)
        return (*before, *arguments, *after), (start, start + len(arguments))

    @staticmethod
    def _split(line: str, own: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The parts before and after a job's own arguments.

        None if the line has several commands (`cd ... &&`) or does not contain these arguments.
        """
        before, found, after = line.partition(own)
        parts = tuple(shlex.split(before)), tuple(shlex.split(after))
        # Snakemake quotes data, so an operator is a word of its own.
        has_operator = any(word in ("&&", "||", ";", "|") for part in parts for word in part)
        return parts if own and found and not has_operator else None

    def _choose(self, job: Any, inherits: bool) -> Choice:
        """The fastest runner that preserves the meaning of a job's rule.

        `inherits`: whether its worker is a child of this process.
        """
        why = ""
        if self._shells is not None:
            try:
                if self._changed and not inherits:
                    # Where the Snakefile is read again, it does the same again.
                    raise UnclearError(f"{self._changed} changed")
                shell, shown = self._shells.of(job)
                return Choice("phase" if shell.phase else "shell", "", shell, shown)
            except UnclearError as error:
                why = str(error)
            except Exception as error:
                # Any error: Snakemake will meet it, too, and report it better.
                why = type(error).__name__
        elif "shell" in self._allowed:
            why = "another Snakemake"
        return Choice("zygote" if "zygote" in self._allowed else "command", why)


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


def _logical(directory: str) -> dict[str, str]:
    """PWD, if it names the directory by another path, as after `cd` through a symbolic link."""
    path = os.environ.get("PWD", "")
    with suppress(OSError):
        if os.path.isabs(path) and path != directory and os.path.samefile(path, directory):
            return {"PWD": path}
    return {}


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


class Identities:
    """The identities of the jobs of one workflow: 64 hexadecimal digits, or None.

    Two jobs have the same identity when the same code does the same with the same files. It covers
    directory, rule, wildcards, files, params, the shell command, threads, software environment, all
    Snakefiles and scripts, the config, and time and size of each input. It does not cover the
    values of the environment, and modules that a Snakefile or a script imports.
    """

    def __init__(self, workflow: Any, directory: str) -> None:
        self._workflow = workflow
        self._files: dict[tuple[str, int, int], str] = {}
        self._run: str | None = None
        with suppress(Exception):
            sources = [self._content(source) for source in workflow.included]
            self._run = _digest([directory, sources, workflow.config])

    def of(self, job: Any, shell_command: str | None = None) -> str | None:
        """The identity of a job; costs a stat(2) for each input.

        `shell_command` is the value of `job.shellcmd`, if it is known already: computing it takes
        as long as all other work here.
        """
        # Any error: Snakemake will meet it, too, and report it better.
        with suppress(Exception):
            jobs = sorted(single_jobs(job), key=lambda one: (one.rule.name, *one.output))
            made = {str(path) for one in jobs for path in one.output} if len(jobs) > 1 else set()
            if self._run is not None and all(map(_is_certain, jobs)):
                parts = [self._of_one(one, made, shell_command) for one in jobs]
                return _digest([self._run, parts])
        return None

    def _of_one(self, job: Any, made: set[str], shell_command: str | None) -> list[Any]:
        """The data that determine one job; `made` are the files that its own group makes."""
        rule = job.rule
        source, spec = source_of_script(job), job.conda_env_spec
        file = getattr(spec, "file", None)
        return [
            rule.name,
            dict(job.wildcards_dict),
            [str(path) for path in job.output],
            [str(path) for path in job.log],
            str(job.benchmark),
            list(job.params),
            list(job.params.keys()),
            job.shellcmd if shell_command is None else shell_command,
            job.threads,
            [rule.wrapper, rule.wrapper and getattr(self._workflow, "wrapper_prefix", None)],
            source and self._content(source),
            [str(job.container_img_url), str(job.env_modules)],
            spec and [str(getattr(spec, key, None)) for key in ("name", "dir")],
            file and self._content(file),
            [_seen(str(path), made) for path in job.input],
            (getattr(rule, "module_globals", None) or {}).get("config"),
        ]

    def _content(self, source: Any) -> str:
        """A digest of a source file."""
        path = path_of_source(source, self._workflow)
        found = os.stat(path)
        key = (path, found.st_mtime_ns, found.st_size)
        if key not in self._files:
            self._files[key] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return self._files[key]


def _is_certain(job: Any) -> bool:
    """Whether the data of `Identities` determine a job, and all of its files are here."""
    rule = job.rule
    flagged = getattr(job, "pipe_or_service_output", ())
    is_stored = any(getattr(path, "is_storage", False) for path in (*job.input, *job.output))
    has_own_wrapper = str(rule.wrapper).startswith("file:")
    return not (flagged or rule.is_cwl or rule.is_template_engine or is_stored or has_own_wrapper)


def _seen(path: str, made: Iterable[str]) -> list[Any]:
    """The current state of a file: path, time in nanoseconds and size."""
    if path in made:
        return [path]
    stamp = None
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return [path, None]
    with suppress(FileNotFoundError):
        if os.path.isdir(path):
            # Snakemake keeps the time of an output directory in this file.
            stamp = os.stat(os.path.join(path, ".snakemake_timestamp")).st_mtime_ns
    return [path, found.st_mtime_ns, found.st_size, stamp]


def _digest(parts: Any) -> str:
    """The same for equal values in two processes. Raises TypeError for values without JSON."""
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | complex | range | PurePath):
        return [type(value).__name__, repr(value)]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(map(_digest, value))
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    # The text of other objects may contain an address, or not all of their contents.
    raise TypeError(type(value))
