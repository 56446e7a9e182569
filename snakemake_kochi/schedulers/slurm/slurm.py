"""Slurm, by its commands: sbatch, squeue or sacct, scancel, sinfo.

All allocations of one owner have the same job name. One query therefore reports all of them, and
finds an allocation that was submitted although sbatch reported an error.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from snakemake_kochi.errors import KochiError, nearest
from snakemake_kochi.schedulers.commands import USUAL, NoProgramError, Pace, trying_again
from snakemake_kochi.schedulers.interface import (
    NO_REQUEST,
    OF_JOB,
    Allocation,
    AllocationRequest,
    AllocationSettings,
    Limits,
    RefusedError,
    SettingsAt,
    UnreachableError,
    Wanted,
    WorkerScript,
    not_ended,
)
from snakemake_kochi.schedulers.slurm.answers import (
    concerned,
    first_node,
    how_to_see_limits,
    is_unknown_partition,
    read_listing,
    run,
)
from snakemake_kochi.schedulers.slurm.environment import CORES, ID, INDEX, default_partition
from snakemake_kochi.schedulers.slurm.options import (
    clusters,
    sbatch_arguments,
    settings_for,
    with_node_spec,
)
from snakemake_kochi.schedulers.slurm.partitions import (
    LISTED,
    Partition,
    limits_of,
    read_partitions,
    without_withheld,
)

if TYPE_CHECKING:
    from tenacity import Retrying

# The answer of sbatch --parsable, with a cluster's name if any, or of a site's own script in its
# place.
_SUBMITTED = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?$", re.MULTILINE)

# Seconds after a submission in which Slurm's database may not know of it: the database receives a
# job seconds later, or minutes later if it is busy. If only the database can be asked, a submission
# whose answer was lost is not repeated within the shorter time.
_UNACCOUNTED = 600.0
_UNACCOUNTED_IF_LOST = 20.0
# Stands for all allocations that one call cancelled.
_ALL = ""


class Slurm:
    """The allocations with the job name `name`; see `interface.Scheduler`."""

    can_exclude = True
    lacks = None

    def __init__(
        self,
        name: str,
        settings: AllocationSettings,
        settings_at: SettingsAt,
        pace: Pace = USUAL,
        unaccounted_if_lost: float = _UNACCOUNTED_IF_LOST,
    ) -> None:
        self._name = name
        self._settings = with_node_spec(settings)
        self._settings_at = settings_at
        self._pace = pace
        self._unaccounted_if_lost = unaccounted_if_lost
        self._born = datetime.now()
        self._given: dict[str, float] = {}  # time of submission of each, time.monotonic
        self._is_uncertain = False  # a submission whose answer was lost may have succeeded
        self._tried = 0.0  # time of the last submission, time.monotonic
        self._cancelled: set[str] = set()
        # The clusters that have its allocations; "" for Slurm's default one.
        self._clusters = set(clusters(self._settings.arguments))
        self._partitions: list[Partition] = []
        self._has_given_up = threading.Event()

    # ---- submission

    def submit(self, wanted: Wanted, worker: WorkerScript, known: Collection[str]) -> list[str]:
        """See `Scheduler.submit`.

        If an earlier call submitted without getting an answer, this one returns those allocations,
        and submits nothing.
        """
        command, script = self._submission(wanted, worker)
        self._clusters.update(
            clusters([*self._settings.arguments, *wanted.request.arguments]) or [""]
        )
        try:
            ids = self._retrying()(self._attempt, command, script, wanted.count, known)
        except NoProgramError:
            raise
        except RefusedError as error:
            raise self._explained(error, wanted) from error
        now = time.monotonic()
        self._given.update(dict.fromkeys(ids, now))
        return ids

    def text(self, wanted: Wanted, worker: WorkerScript) -> str:
        """See `Scheduler.text`."""
        command, script = self._submission(wanted, worker)
        return f"{shlex.join(command)} << 'END'\n{script}END\n"

    def _submission(self, wanted: Wanted, worker: WorkerScript) -> tuple[list[str], str]:
        """The command, and the script that it reads."""
        log = worker.log("%j" if wanted.count == 1 else "%A_%a")
        arguments = sbatch_arguments(self._name, self._settings, wanted, worker.grace, log)
        return ["sbatch", "--parsable", *arguments], worker.script(ID, CORES, index=INDEX)

    def give_up(self) -> None:
        """See `Scheduler.give_up`."""
        self._has_given_up.set()

    def _retrying(self) -> Retrying:
        return trying_again(self._pace, self._has_given_up)

    def _attempt(
        self, command: list[str], script: str, count: int, known: Collection[str]
    ) -> list[str]:
        # The last attempt may have succeeded, and only its answer was lost.
        if self._is_uncertain and (lost := self._lost(known)):
            return lost
        if self._has_given_up.is_set():
            raise UnreachableError("the run ends, and submits nothing more")
        self._is_uncertain = True
        self._cancelled.discard(_ALL)
        try:
            said = self._run(*command, text=script)
        except RefusedError:
            self._is_uncertain = False
            raise
        finally:
            self._tried = time.monotonic()
        found = _SUBMITTED.findall(said)
        if not found:
            raise UnreachableError(f"sbatch printed {said!r} instead of the number of a job")
        self._is_uncertain = False
        number = found[-1]
        return [number] if count == 1 else [f"{number}_{index}" for index in range(1, count + 1)]

    def _lost(self, known: Collection[str]) -> list[str]:
        """The allocations of a submission whose answer was lost. Raises UnreachableError."""
        numbers = set(map(_number, known)) | set(map(_number, self._given))
        lost = [id for id in self.find() or {} if _number(id) not in numbers]
        if not lost:
            return []
        first = min(map(_number, lost), key=int)
        # There may be another such submission.
        self._is_uncertain = any(_number(id) != first for id in lost)
        return [id for id in lost if _number(id) == first]

    def _explained(self, error: RefusedError, wanted: Wanted) -> RefusedError:
        """The refusal, with the settings to change and their place."""
        keys = concerned(error.message)
        hints = [f"See {self._settings_at(keys)}."]
        if asked := wanted.request.describe():
            hints.append(f"The rule's resources request {asked}.")
        if is_unknown_partition(error.message):
            hints.append(self._nearest_partition(wanted))
            hints.append("To see all, type: sinfo --summarize")
        elif command := how_to_see_limits(keys):
            hints.append(f"To see what you may use, type: {command}")
        elif {"cores", "nodes", "constraint", "gres"} & set(keys):
            hints.append(
                "To see what nodes have, type: "
                "sinfo --exact --format='%P %D %c %m %G %f %l' (partition, number, cores, MiB, "
                "GPUs, features, time)"
            )
        message = f"{error.message}\nThe request was for {wanted.describe()}."
        return RefusedError(message, " ".join(hints))

    def _nearest_partition(self, wanted: Wanted) -> str:
        name = self._partition(settings_for(wanted.request, self._settings))
        try:
            known = {each.name for each in self._all_partitions()}
        except KochiError:
            return ""  # the message of the refusal is sufficient
        return f"Partition {name}: {nearest(name or '', known)}"

    # ---- nodes and partitions

    @staticmethod
    def _partition(settings: AllocationSettings) -> str | None:
        return settings.constraints.get("partition") or default_partition()

    def _all_partitions(self) -> list[Partition]:
        if not self._partitions:
            said = self._run("sinfo", "--all", "--noheader", "--exact", f"--format={LISTED}")
            shown = map(self._shown, ("nodes", "partitions"))
            self._partitions = without_withheld(read_partitions(said), *shown)
        return self._partitions

    def _shown(self, what: str) -> str:
        """The output of scontrol for nodes or partitions.

        "" if it fails: the answer of sinfo must then suffice.
        """
        try:
            return self._run("scontrol", "--all", "--oneliner", "show", what)
        except KochiError:
            return ""

    def check(self, request: AllocationRequest, gpus: int) -> None:
        """Nothing: Slurm gets all of it."""

    def limits(self, request: AllocationRequest = NO_REQUEST) -> Limits:
        """The limits from the machine's settings and, for the rest, from the partition.

        The partition gives its nodes and its longest time. It asks Slurm once, and needs no answer
        if the settings are complete.
        """
        settings = settings_for(request, self._settings)
        partitions: list[Partition] = []
        try:
            partitions = self._retrying()(self._all_partitions)
        except NoProgramError:
            if not _says_all(settings):
                raise
        except UnreachableError as error:
            if not _says_all(settings):
                raise UnreachableError(
                    f"Slurm does not say what its nodes have: {error.message}",
                    "Try again later; or say it yourself, with "
                    f"{self._settings_at(['cores', 'memory', 'gpus'])}.",
                ) from error
        name = self._partition(settings)
        is_other = name != self._partition(self._settings)
        tasks = request.tasks or (request.tasks_per_node or 0) * (request.nodes or 1)
        return limits_of(
            *(partitions, name, settings, self._asked_at(request), is_other, request.gpu_model),
            cores_in_all=tasks * (request.cpus_per_task or 1),
        )

    def _asked_at(self, request: AllocationRequest) -> SettingsAt:
        """Where keys are set: by the request, or by the machine's settings."""
        given = {"tasks", *request.constraints, *([] if request.nodes is None else ["nodes"])}

        def asked_at(keys: Iterable[str]) -> str:
            wanted = list(keys)
            found = [OF_JOB] if given.intersection(wanted) else []
            if own := [key for key in wanted if key not in given]:
                found.append(self._settings_at(own))
            return " or ".join(found)

        return asked_at

    # ---- state of the allocations

    def find(self) -> dict[str, Allocation] | None:
        try:
            found = read_listing(self._squeue("--states=all"), self._settings_at)
            taken = {id: each for id, each in found.items() if each.was_taken}
            return {**not_ended(found), **taken}
        except KochiError as error:
            failure = error
        try:
            return self._accounted(read_listing(self._sacct(), self._settings_at))
        except UnreachableError:
            pass
        except RefusedError:
            # Many clusters have no sacct, or no database: that does not change.
            if isinstance(failure, NoProgramError):
                return None
        raise UnreachableError(failure.message) from failure

    def ends(self, ids: Collection[str]) -> dict[str, Allocation]:
        """See `Scheduler.ends`.

        Slurm's controller keeps ended jobs for some minutes, except those of an array that were
        cancelled before they began. The database, if any, keeps them all.
        """
        found: dict[str, Allocation] = {}
        failure: KochiError | None = None
        for ask in (partial(self._squeue, "--states=all"), self._sacct):
            try:
                found = {**read_listing(ask(), self._settings_at), **found}
            except KochiError as error:
                failure = failure or error
            known = {id: found[id] for id in ids if id in found and found[id].state == "ended"}
            if len(known) == len(ids):
                break
        if isinstance(failure, UnreachableError) and not known:
            raise failure
        return {id: replace(each, nodes=first_node(each.nodes)) for id, each in known.items()}

    def _squeue(self, *which: str) -> str:
        return self._run(
            *("squeue", "--noheader", "--array", f"--name={self._name}"),
            *(f"--user={os.getuid()}", *which, "--format=%i|%T|%N|%r"),
        )

    def _sacct(self) -> str:
        # Without a time, sacct would omit jobs that have waited since yesterday.
        since = (self._born - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S")
        return self._run(
            *("sacct", "--allocations", "--noheader", "--parsable2", f"--name={self._name}"),
            *(f"--user={os.getuid()}", f"--starttime={since}"),
            "--format=JobID,State,NodeList,Reason",
        )

    def _accounted(self, found: dict[str, Allocation]) -> dict[str, Allocation]:
        """The allocations that run or may still run, by an answer of the database.

        A job that it does not know yet has not ended. For an array, and for a requeued job, it may
        report cancelled allocations as pending for ever.
        """
        now = time.monotonic()
        if self._is_uncertain and now - self._tried < self._unaccounted_if_lost:
            raise UnreachableError("sacct may not know the latest submission yet")
        young = [id for id, since in list(self._given.items()) if now - since < _UNACCOUNTED]
        known = not_ended({**{id: Allocation(id, "pending") for id in young}, **found})
        return {
            id: each
            for id, each in known.items()
            if each.state != "pending" or not self._cancelled & {id, _ALL}
        }

    def cancel(self, ids: Iterable[str] = ()) -> None:
        which = list(ids)
        self._scancel(*(which or [f"--name={self._name}", f"--user={os.getuid()}"]))
        for id in which or list(self._given):
            self._given.pop(id, None)
        self._cancelled.update(which or [_ALL])

    def tell_to_leave(self, ids: Collection[str]) -> None:
        # The signal of scancel without options, but to the worker alone: nothing is cancelled.
        self._scancel("--batch", "--signal=TERM", *ids)

    def _scancel(self, *arguments: str) -> None:
        try:
            self._run("scancel", "--quiet", *arguments)
        except RefusedError as error:
            if "invalid job id" not in error.message.lower():  # that job has ended
                raise

    @property
    def how_to_cancel(self) -> str:
        return f"scancel --name={self._name}"

    def _run(self, program: str, *arguments: str, text: str = "") -> str:
        """Run one of Slurm's commands for the clusters that have the allocations."""
        where = () if program == "sbatch" else self._where
        return run([program, *where, *arguments], self._pace.answer, text)

    @property
    def _where(self) -> tuple[str, ...]:
        if not any(self._clusters):
            return ()
        # The name of the default cluster is not known here.
        which = "all" if "" in self._clusters else ",".join(sorted(self._clusters))
        return (f"--clusters={which}",)


def _says_all(settings: AllocationSettings) -> bool:
    return None not in (settings.cores, settings.memory_mb, settings.gpus)


def _number(allocation: str) -> str:
    """The number of the submission, also for an allocation of an array."""
    return allocation.partition("_")[0]
