"""Adoption: finding jobs of an earlier run that are the same work as jobs of this run.

An identity says what makes a job of Snakemake the same work as a job of an earlier run. If a part
of it is missing or uncertain, the job has no identity and is executed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.executor.internals import path_of_source, source_of_script
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Ended, Inbox, Orphans, OtherControllers, Running, Ticket

# Seconds. Jobs that their worker ends together with the dead controller have ended by then.
_ENDING_SECONDS = 15.0
_PAUSE = 0.05
_LOOK = 0.5


def await_others(
    others: OtherControllers,
    look_after: Callable[[str], None],
    logger: LoggerExecutorInterface,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, float]:
    """Wait until all other runs in the directory that make the same files are known to be over.

    Returns the controllers that are dead although their files do not show it, as `Orphans.find`
    takes them. Meanwhile calls `look_after` for each of their queues, because workers there may
    have died, too. Raises KochiError for a run that goes on.
    """
    told = set()
    while watched := others.look():
        for each in watched:
            state = each.state
            if each.seconds_left is not None and state.identity not in told:
                told.add(state.identity)
                logger.warning(
                    f"A run in this directory was started on {state.node.host} (process "
                    f"{state.process.pid}, since {state.started}), and it cannot be asked from "
                    "here whether it goes on: for a sign of life this one waits "
                    f"{each.seconds_left:.0f} s, before it adopts its jobs; else each job "
                    "would be done twice."
                )
            for queue in state.queues or ():
                look_after(queue)
        sleep(_LOOK)
    return others.dead


class Adoption:
    """Finds for each job whether an earlier run left it.

    It reads no file twice, and no file at all if there is no such run.
    """

    def __init__(
        self,
        machine: MachinePaths,
        workflow: Any,
        inbox: Inbox,
        logger: LoggerExecutorInterface,
        dead: Mapping[str, float],
    ) -> None:
        """`dead`: see `await_others`."""
        self._workflow = workflow
        self._logger = logger
        self._orphans = Orphans.find(machine, workflow.workdir_init, inbox.identity, dead)
        for each in self._orphans.controllers:
            inbox.adopt(machine, each)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The dead controllers whose jobs this run adopts."""
        return self._orphans.controllers

    @property
    def is_empty(self) -> bool:
        return self._orphans.is_empty

    def begin(self, look_after: Callable[[str], None]) -> None:
        """Withdraw waiting jobs, wait for ending ones, and say what was found.

        Meanwhile calls `look_after` for each queue with an ending job.
        """
        if self.is_empty:
            return
        withdrawn = self._orphans.withdraw()
        running, finished = len(self._orphans.running()), self._orphans.unread()
        found = []
        if running or finished:
            found.append(
                f"It left {running} running and {finished} finished kochi jobs, which are adopted "
                "as far as they are needed."
            )
        if withdrawn:
            found.append(
                "1 job of it is ended; if it is still needed, it begins again."
                if len(withdrawn) == 1
                else f"{len(withdrawn)} jobs of it are ended; those still needed begin again."
            )
        if found:
            self._logger.info(
                f"A run in this directory was killed, or its time was over. {' '.join(found)}"
            )
        deadline = time.monotonic() + _ENDING_SECONDS
        look = 0.0
        while (queues := self._orphans.queues_of_ending()) and time.monotonic() < deadline:
            if time.monotonic() >= look:
                look = time.monotonic() + _LOOK
                for queue in queues:
                    look_after(queue)
            time.sleep(_PAUSE)

    def find(self, job: JobExecutorInterface, ticket: Ticket) -> Running | Ended | None:
        """The same job of an earlier run, unless it must be executed again."""
        if self.is_empty or is_forced(self._workflow, job):
            return None
        # Snakemake's own mark of incomplete outputs is no evidence: the job's inner process removes
        # it, possibly between the reading of the DAG and now.
        return self._orphans.take(ticket.identity)

    def clear_the_way(self, ticket: Ticket) -> tuple[int, ...]:
        """End the jobs that write the files of this ticket; returns those to wait for."""
        jobs = self._orphans.in_the_way(ticket.outputs)
        if jobs:
            self._orphans.clear(jobs)
            numbers = " ".join(map(str, jobs))
            self._logger.info(
                f"Before {ticket.name} starts, kochi jobs {numbers} have to end, of a run that was "
                "killed: they write the same files, but are not the same."
            )
        return tuple(jobs)

    def queues_of_ending(self) -> set[str]:
        """The queues of withdrawn jobs that have not ended."""
        return self._orphans.queues_of_ending()

    def has_ended(self, jobs: Collection[int]) -> bool:
        return all(map(self._orphans.has_ended, jobs))

    def end(self, all_went_well: bool) -> None:
        """Name the jobs that still run, at the end of the run.

        Forget the others if no run can need them.
        """
        if left := self._orphans.running():
            numbers = " ".join(map(str, left))
            self._logger.warning(
                f"{len(left)} kochi jobs of a run that was killed still run; this run did not need "
                f"them. End them with: kochi cancel {numbers}"
            )
        if all_went_well:
            self._orphans.forget()


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
            jobs = sorted(_single_jobs(job), key=lambda one: (one.rule.name, *one.output))
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


def is_forced(workflow: Any, job: Any) -> bool:
    """Whether the user requested that the job be executed again.

    The options are --forceall, --forcerun and --force.
    """
    settings = getattr(workflow, "dag_settings", None)
    if settings is None or settings.forceall or settings.forcetargets:
        return True
    forced = set(map(str, settings.forcerun))
    if not forced:
        return False
    if any(one.rule.name in forced for one in _single_jobs(job)):
        return True
    return any(str(path) in forced for one in _single_jobs(job) for path in one.output)


def outputs_of(job: Any, directory: str) -> tuple[str, ...]:
    """The files that a job writes, relative to the directory if they are below it."""
    paths = (str(path) for one in _single_jobs(job) for path in one.output)
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


def relative_to(path: str, directory: str) -> str:
    """A path in the form of `outputs_of`."""
    prefix = directory.rstrip("/") + "/"
    # Not os.path.relpath: with `..` behind a symbolic link it names another file.
    return os.path.normpath(path.removeprefix(prefix) if path.startswith(prefix) else path)


def _single_jobs(job: Any) -> list[Any]:
    return list(job.jobs) if job.is_group() else [job]


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
