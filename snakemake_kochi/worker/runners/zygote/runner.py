"""The runner that executes Snakemake jobs in copies of a process that has parsed their workflow."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import select
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.files import TRANSIENT
from snakemake_kochi.next.worker.snakemake_internals import JOB_OPTIONS
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import WorkerPaths
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.runners.interface import Child, Runner, RunnerUnavailableError
from snakemake_kochi.worker.runners.zygote.link import ZygoteFailedError, ZygoteLink

_log = logging.getLogger(__name__)

# Each zygote takes the memory of a Snakemake, some 100 MiB, and most workers serve one run at a
# time.
_MOST_ZYGOTES = 4
# The share of the worker's memory that all zygotes may take. Jobs are told that they have all of
# that memory.
_MEMORY_SHARE = 0.25
# A zygote takes as long to make as a job without one takes to run. A zygote that ends before it has
# made _WORTH_IT processes was wasted. After _MOST_WASTED in a row the workflow gets no more.
_WORTH_IT = 3
_MOST_WASTED = 3
# Seconds from telling a zygote to end until it is killed.
_END_PATIENCE = 2.0

# Seconds. A zygote that was not used for so long was not wasted: its workflow had no job for it.
_UNUSED = 60.0

_SNAKEMAKE = ("-m", "snakemake")
# For a single job or group the scheduler has nothing to optimise.
_SCHEDULER = ("--scheduler", "greedy")


@dataclass(frozen=True)
class _Plan:
    """The zygote that a ticket needs.

    `key`: equal for two tickets that one zygote can serve. `arguments`: all arguments of the job,
    of which `options` are its own.
    """

    key: str
    workflow_arguments: tuple[str, ...]
    arguments: tuple[str, ...]
    options: tuple[str, ...]


def _plan_of(ticket: Ticket) -> _Plan | None:
    if ticket.job_arguments is None or ticket.command[1:3] != _SNAKEMAKE:
        return None
    start, stop = ticket.job_arguments
    own = ticket.command[start:stop]
    if start < 3 or _unknown_options(ticket):
        return None
    common = (*ticket.command[3:start], *ticket.command[stop:], *_SCHEDULER)
    # Two runs do not share a zygote: programs, databases and the clock may also give other answers
    # by then. Within one run the main process has read the workflow only once.
    where = [ticket.controller, ticket.directory, sorted(ticket.environment.items())]
    words = [ticket.command[0], common, *where]
    key = hashlib.sha256(json.dumps(words).encode()).hexdigest()
    return _Plan(key, common, (*ticket.command[3:], *_SCHEDULER), own)


def _unknown_options(ticket: Ticket) -> set[str]:
    """The job's own options that may concern the parse."""
    start, stop = ticket.job_arguments or (0, 0)
    return {word for word in ticket.command[start:stop] if word.startswith("--")} - JOB_OPTIONS


@dataclass(frozen=True)
class _Zygote:
    link: ZygoteLink
    cores: int
    began: float = field(default_factory=time.monotonic)


@dataclass
class _Workflow:
    """The state of the workflow of one key.

    `wasted`: how many zygotes in a row were wasted. `unfit`: why it gets no more zygotes, or None.
    `not_before`: when the next one may be started, in monotonic seconds.
    """

    reads_cores: bool = False
    wasted: int = 0
    unfit: str | None = None
    not_before: float = 0.0

    @property
    def may_have_one(self) -> bool:
        return self.unfit is None and time.monotonic() >= self.not_before


# A key, and the number of cores if the workflow read it during the parse.
_PoolKey = tuple[str, int | None]


class ZygoteRunner(Runner):
    """Runs jobs in zygotes; see also `interface.Watched`."""

    name = "zygote"

    def __init__(
        self,
        paths: WorkerPaths,
        environment: Mapping[str, str],
        cpus: int,
        memory_mb: int,
        retry: float = 10.0,
    ) -> None:
        """Begin without zygotes.

        `environment`: the common environment of all jobs. `cpus`: the number of CPUs of a job that
        is not pinned. `memory_mb`: the memory of the worker. After an error of the filesystem the
        jobs go to the next runner for `retry` seconds.
        """
        self._retry = retry
        self._paths = paths
        self._environment = dict(environment)
        self._cpus = cpus
        self._most_memory_mb = memory_mb * _MEMORY_SHARE
        self._workflows: dict[str, _Workflow] = defaultdict(_Workflow)
        self._zygotes: dict[_PoolKey, _Zygote] = {}
        self._ending: list[tuple[ZygoteLink, float]] = []
        self._epoll = select.epoll()
        self._planned: tuple[Ticket, _Plan | None] | None = None
        self._notices = Notices(_log)

    # ---- Runner

    def can_run(self, ticket: Ticket) -> bool:
        plan = self._plan_of(ticket)
        return plan is not None and self._workflows[plan.key].unfit is None

    def why_not(self, ticket: Ticket) -> str:
        if ticket.job_arguments is None:
            return ""
        if (plan := self._plan_of(ticket)) is not None:
            return self._workflows[plan.key].unfit or ""
        if unknown := sorted(_unknown_options(ticket)):
            return f"unknown options: {', '.join(unknown)}"
        return "the command does not run Snakemake by python -m snakemake"

    def is_ready(self, ticket: Ticket) -> bool:
        plan = self._plan_of(ticket)
        assert plan is not None
        self.attend()
        zygote = self._zygotes.get(self._pool_key(plan, ticket))
        if zygote is not None:
            return zygote.link.is_ready
        workflow = self._workflows[plan.key]
        if workflow.may_have_one:
            self._start_zygote(plan, ticket)
        return not workflow.may_have_one

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> Child:
        plan = self._plan_of(ticket)
        assert plan is not None
        pool_key = self._pool_key(plan, ticket)
        zygote = self._zygotes.get(pool_key)
        if zygote is None or not zygote.link.is_ready:
            raise RunnerUnavailableError("no zygote is ready")
        if zygote.link.reads_cores and zygote.cores != (self._cpus if cpus is None else len(cpus)):
            raise RunnerUnavailableError("its workflow depends on the number of CPUs")
        held, gate = os.pipe()
        try:
            chosen = None if cpus is None else sorted(cpus)
            pid = zygote.link.fork(plan.arguments, plan.options, environment, chosen, log, held)
            return Child(self.name, pid, gate)
        except BaseException as error:
            # Close the gate first: the process behind it then ends, whatever the zygote does.
            os.close(gate)
            if not isinstance(error, ZygoteFailedError):
                raise
            self._drop(pool_key)
            raise RunnerUnavailableError(str(error)) from error
        finally:
            os.close(held)

    def _plan_of(self, ticket: Ticket) -> _Plan | None:
        # The worker calls this several times for one ticket before it starts the ticket.
        if self._planned is None or self._planned[0] is not ticket:
            self._planned = ticket, _plan_of(ticket)
        return self._planned[1]

    def _pool_key(self, plan: _Plan, ticket: Ticket) -> _PoolKey:
        reads_cores = self._workflows[plan.key].reads_cores
        return plan.key, self._cores(ticket) if reads_cores else None

    def _cores(self, ticket: Ticket) -> int:
        """How many CPUs the job will have, if enough are free to pin it."""
        wanted = ticket.resources
        return (
            min(wanted.cores, self._cpus) if wanted.pinned and not wanted.exclusive else self._cpus
        )

    def close(self) -> None:
        for pool_key in list(self._zygotes):
            self._end(pool_key)

        def have_ended() -> bool:
            self._reap_or_kill()
            return not self._ending

        wait_until(have_ended, _END_PATIENCE, 0.005)
        for link, _ in self._ending:
            link.kill()

    # ---- Watched

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def helpers(self) -> set[int]:
        return {link.pid for link in self._links()}

    def attend(self) -> None:
        for pool_key, zygote in list(self._zygotes.items()):
            was_ready = zygote.link.is_ready
            zygote.link.attend()
            if zygote.link.failure is not None:
                self._drop(pool_key)
            elif zygote.link.is_ready and not was_ready:
                self._note_ready(pool_key, zygote)
        if self._ending:
            self._reap_or_kill()

    def _reap_or_kill(self) -> None:
        self._ending = [(link, due) for link, due in self._ending if not link.is_gone]
        for link, due in self._ending:
            if time.monotonic() >= due:
                link.kill()

    # ---- zygotes

    def _start_zygote(self, plan: _Plan, ticket: Ticket) -> None:
        while len(self._zygotes) >= _MOST_ZYGOTES:
            self._drop(self._least_used())
        cores = self._cores(ticket)
        environment = {**self._environment, "PWD": ticket.directory, **ticket.environment}
        program, directory, arguments = ticket.command[0], ticket.directory, plan.workflow_arguments
        try:
            link = ZygoteLink(program, arguments, cores, directory, environment, self._free_log())
        except OSError as error:
            workflow = self._workflows[plan.key]
            if error.errno in TRANSIENT:
                workflow.not_before = time.monotonic() + self._retry
                self._notices.fault("no zygote can be started now", error)
            else:
                self._give_up(plan.key, str(error))
            return
        self._notices.over("no zygote can be started now")
        self._zygotes[self._pool_key(plan, ticket)] = _Zygote(link, cores)
        self._epoll.register(link, select.EPOLLIN)
        _log.info("zygote %d reads the workflow in %s", link.pid, ticket.directory)

    def _note_ready(self, pool_key: _PoolKey, zygote: _Zygote) -> None:
        """Note the needs of a zygote that is ready, and for which jobs it serves."""
        link = zygote.link
        taken = time.monotonic() - zygote.began
        _log.info("zygote %d is ready after %.1f s, %d MiB", link.pid, taken, link.memory_mb)
        key, _ = pool_key
        if link.reads_cores and not self._workflows[key].reads_cores:
            self._workflows[key].reads_cores = True
            del self._zygotes[pool_key]
            pool_key = key, zygote.cores
            self._zygotes[pool_key] = zygote
        if link.memory_mb > self._most_memory_mb:
            self._end(pool_key)
            self._give_up(key, f"it takes {link.memory_mb} MiB")
            return
        while sum(z.link.memory_mb for z in self._zygotes.values()) > self._most_memory_mb:
            self._drop(self._least_used())

    def _least_used(self) -> _PoolKey:
        return min(self._zygotes, key=lambda pool_key: self._zygotes[pool_key].link.used)

    def _drop(self, pool_key: _PoolKey) -> None:
        """End a zygote, and decide by its use whether another one is worthwhile."""
        zygote = self._end(pool_key)
        link, workflow = zygote.link, self._workflows[pool_key[0]]
        why = link.failure or "other zygotes are used more"
        _log.info("zygote %d ends after %d jobs: %s", link.pid, link.served, why)
        if link.is_unfit:
            self._give_up(pool_key[0], f"{why} (see {link.log})")
        elif link.served >= _WORTH_IT:
            workflow.wasted = 0
        elif time.monotonic() - link.used < _UNUSED:
            workflow.wasted += 1
            if workflow.wasted >= _MOST_WASTED:
                self._give_up(
                    pool_key[0], f"{_MOST_WASTED} in a row were of little use; the last one: {why}"
                )

    def _end(self, pool_key: _PoolKey) -> _Zygote:
        zygote = self._zygotes.pop(pool_key)
        self._epoll.unregister(zygote.link)
        zygote.link.end()
        self._ending.append((zygote.link, time.monotonic() + _END_PATIENCE))
        self._reap_or_kill()
        return zygote

    def _give_up(self, key: str, why: str) -> None:
        self._workflows[key].unfit = why
        _log.warning("no zygote for the workflow, its jobs go to the next runner: %s", why)

    def _links(self) -> list[ZygoteLink]:
        """The links of all zygotes that have not been reaped."""
        living = [zygote.link for zygote in self._zygotes.values()]
        return [*living, *(link for link, _ in self._ending)]

    def _free_log(self) -> Path:
        """A log that no zygote uses.

        A worker needs few such files, however many zygotes it has in its life.
        """
        used = {link.log for link in self._links()}
        return next(log for n in count() if (log := self._paths.zygote_log(n)) not in used)
