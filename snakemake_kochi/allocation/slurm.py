"""Slurm, by its commands: sbatch, squeue, scancel, sinfo.

All allocations of one owner have the same job name, so that one query tells of all of them, and
one that was submitted although sbatch said otherwise is found.
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from snakemake_kochi.allocation.launch import Launch
from snakemake_kochi.allocation.scheduler import (
    Allocation,
    RefusedError,
    State,
    UnreachableError,
    Wanted,
    time_limit,
)
from snakemake_kochi.allocation.sizing import Limits
from snakemake_kochi.project.machines import AllocationSettings
from snakemake_kochi.queue import Capacity

# Seconds for an answer of a controller that is busy; Slurm's own patience is ten.
_PATIENCE = 60.0
# Seconds for which a submission is tried again, and between two of them at most.
_SUBMISSION_PATIENCE = 300.0
_MOST_WAIT = 30.0
# What sbatch says when the fault is the controller's, or the network's, and a later try may do.
_TRANSIENT = (
    "socket timed out",
    "unable to contact slurm controller",
    "connection refused",
    "connection reset",
    "connection timed out",
    "transport endpoint is not connected",
    "resource temporarily unavailable",
    "zero bytes were transmitted",
    "in standby mode",
    "slurm temporarily unable to accept job",
    "no route to host",
    "timeout",
)

# sinfo(1), %G: gpu:2, gpu:a100:2, either followed by (S:...).
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")

# As Slurm's own commands name it: 12, or 12_3 for one of an array. A requeued one keeps it.
_ID = '"${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"'
# What Slurm has given, which may be more than what was asked for; not what the node has.
_CORES = '"$SLURM_CPUS_ON_NODE"'

_OF_A_JOB = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "PMI_", "PMIX_", "OMPI_")
_OF_THE_CLUSTER = ("SLURM_CONF",)

# squeue(1), JOB STATE CODES. What is not here is over; what is stopped goes on some day.
_PENDING = frozenset({"CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"})
_RUNNING = frozenset(
    {"COMPLETING", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
)


class Slurm:
    """See `scheduler.Scheduler`: the allocations with the job name `name`."""

    def __init__(self, name: str, settings: AllocationSettings) -> None:
        self._name = name
        self._settings = settings

    def submit(self, wanted: Wanted, launch: Launch, known: Collection[str]) -> list[str]:
        log = launch.log("%j" if wanted.count == 1 else "%A_%a")
        command = ["sbatch", "--parsable", *self._arguments(wanted, launch, log)]
        script = launch.script(_ID, _CORES)
        is_again = False

        def attempt() -> str:
            nonlocal is_again
            # The answer to the last attempt may have got lost, and not the attempt.
            if is_again and (
                lost := set(map(_number, self.find())).difference(map(_number, known))
            ):
                return min(lost)
            is_again = True
            return _run(command, script).partition(";")[0]

        retrying = Retrying(
            retry=retry_if_exception_type(UnreachableError),
            wait=wait_random_exponential(max=_MOST_WAIT),
            stop=stop_after_delay(_SUBMISSION_PATIENCE),
            reraise=True,
        )
        number = retrying(attempt)
        if wanted.count == 1:
            return [number]
        return [f"{number}_{index}" for index in range(1, wanted.count + 1)]

    def _arguments(self, wanted: Wanted, launch: Launch, log: Path) -> list[str]:
        settings = self._settings
        arguments = [
            f"--job-name={self._name}",
            f"--output={log}",
            f"--nodes={settings.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={wanted.cores}",
            # Its shell alone: it has become the worker, which tells its jobs.
            f"--signal=B:USR1@{int(2 * launch.grace)}",
            "--requeue",
            "--open-mode=append",
        ]
        if wanted.memory_mb:
            arguments.append(f"--mem={wanted.memory_mb}M")
        if wanted.gpus and settings.gres is None:
            arguments.append(f"--gres=gpu:{wanted.gpus}")
        if wanted.seconds is not None:
            arguments.append(f"--time={time_limit(wanted.seconds)}")
        if wanted.whole_node:
            arguments.append("--exclusive")
        if wanted.count > 1:
            arguments.append(f"--array=1-{wanted.count}")
        for option in ("partition", "account", "qos", "reservation", "constraint", "gres"):
            if (value := getattr(settings, option)) is not None:
                arguments.append(f"--{option}={value}")
        return [*arguments, *settings.arguments, *wanted.arguments]

    def limits(self) -> Limits:
        """By the machine's settings, and for the rest by the partition's largest node."""
        settings = self._settings
        known = (settings.cores, settings.memory_mb, settings.gpus)
        node = Capacity(*(amount or 0 for amount in known))
        if None in known:
            partition = [f"--partition={settings.partition}"] if settings.partition else []
            said = _run(["sinfo", "--noheader", "--format=%c|%m|%G", *partition])
            nodes = [_node(line) for line in said.splitlines() if line.count("|") >= 2]
            if not nodes:
                where = f"partition {settings.partition}" if settings.partition else "this cluster"
                raise RefusedError(f"Slurm knows no nodes of {where}", "To see all, type: sinfo")
            node = Capacity(
                settings.cores or max(node.cores for node in nodes),
                settings.memory_mb or max(node.memory_mb for node in nodes),
                max(node.gpus for node in nodes) if settings.gpus is None else settings.gpus,
            )
        return Limits(settings.max_workers, node, settings.time)

    def find(self) -> dict[str, Allocation]:
        said = _run(
            [
                *("squeue", "--noheader", "--array", f"--name={self._name}"),
                *(f"--user={getpass.getuser()}", "--format=%i|%T|%r|%N"),
            ]
        )
        found = [_parse(line) for line in said.splitlines() if line.count("|") >= 3]
        return {each.id: each for each in found if each.state != "ended"}

    def cancel(self, ids: Iterable[str] = ()) -> None:
        which = list(ids) or [f"--name={self._name}", f"--user={getpass.getuser()}"]
        _run(["scancel", "--quiet", *which])

    @property
    def how_to_cancel(self) -> str:
        return f"scancel --name={self._name}"


def _number(allocation: str) -> str:
    """That of the submission, of an allocation that may be one of an array."""
    return allocation.partition("_")[0]


def _node(line: str) -> Capacity:
    """From processors, MiB and generic resources, as in `4|4096+|gpu:a100:2(S:0-1)`."""
    cores, memory, generic = line.split("|", 2)
    gpus = [int(number) for number in _GPUS.findall(generic)]
    return Capacity(int(cores.rstrip("+")), int(memory.rstrip("+")), sum(gpus))


def _parse(line: str) -> Allocation:
    number, word, reason, nodes = line.split("|", 3)
    state: State = "ended"
    if word in _PENDING:
        state = "pending"
    elif word in _RUNNING:
        state = "running"
    return Allocation(number, state, reason, nodes)


def _run(command: Sequence[str], text: str | None = None) -> str:
    """What a command says. Raises RefusedError, or UnreachableError where another try may do."""
    program = command[0]
    try:
        done = subprocess.run(
            command,
            input=text or "",
            env=_without_outer_job(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except FileNotFoundError as error:
        raise RefusedError(
            f"there is no program {program} here",
            "Is this a login node of the cluster? If so: module load slurm",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(f"{program} gave no answer in {_PATIENCE:.0f} s") from error
    said = done.stderr.strip() or done.stdout.strip()
    if done.returncode == 0:
        return done.stdout.strip()
    if any(words in said.lower() for words in _TRANSIENT):
        raise UnreachableError(f"{program}: {said}")
    raise RefusedError(f"{program} refused (status {done.returncode}): {said}")


def _without_outer_job() -> dict[str, str]:
    """Not the variables of a Slurm job in which the controller runs, by which sbatch, and then the
    worker, would take that job's shape."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _OF_THE_CLUSTER or not name.startswith(_OF_A_JOB)
    }
