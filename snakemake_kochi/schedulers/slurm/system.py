"""The Slurm of this host: its description, its allocations, and a controller in one of them.

See `native.BatchSystem`.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from humanfriendly import format_number
from humanfriendly.text import pluralize

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_name
from snakemake_kochi.quantities import walltime_of
from snakemake_kochi.schedulers.commands import NoProgramError, Pace
from snakemake_kochi.schedulers.interface import (
    AllocationSettings,
    ControllerJob,
    Description,
    RefusedError,
    Scheduler,
    SettingsAt,
    UnreachableError,
    Wanted,
    time_limit,
)
from snakemake_kochi.schedulers.slurm.answers import run
from snakemake_kochi.schedulers.slurm.environment import (
    CORES,
    ID,
    default_partition,
    without_outer_job_words,
)
from snakemake_kochi.schedulers.slurm.options import PROGRAM, controller_arguments, shell_arguments
from snakemake_kochi.schedulers.slurm.partitions import (
    LISTED,
    Partition,
    facts_of,
    limits_of,
    read_partitions,
)
from snakemake_kochi.schedulers.slurm.slurm import Slurm

NAME, TITLE = "slurm", "Slurm"

# Seconds for one answer: if a person waits for it, if only a remark depends on it, and about the
# job of a controller.
_PATIENCE = 10.0
_SHORT_PATIENCE = 2.0
_CONTROLLER_PATIENCE = 60.0
_CLUSTER = re.compile(r"^\s*ClusterName\s*=\s*(\S+)\s*$", re.MULTILINE)


def allocations(
    name: str, settings: AllocationSettings, settings_at: SettingsAt, pace: Pace
) -> Scheduler:
    return Slurm(name, settings, settings_at, pace)


# ---- its description


def is_there() -> bool:
    with contextlib.suppress(KochiError):
        return bool(run(["scontrol", "show", "config"], _SHORT_PATIENCE))
    return False


def cluster_name() -> str:
    found = _CLUSTER.search(_ask("scontrol", "show", "config"))
    # A cluster may have a name that a machine cannot have.
    return found[1] if found is not None and is_name(found[1]) else NAME


@dataclass(frozen=True)
class _Accounts:
    """The accounts that the user may name, and Slurm's default account.

    Both are empty if Slurm keeps no accounts.
    """

    names: tuple[str, ...] = ()
    default: str | None = None


def describe_machine() -> Description:
    if shutil.which(PROGRAM) is None:
        raise NoProgramError(
            "there is no program sbatch here",
            "Is this a login node of the cluster? If so, type: module load slurm\n"
            "For a cluster with another scheduler, see docs/cluster.md.",
        )
    name = cluster_name()
    partitions = read_partitions(_ask("sinfo", "--noheader", "--exact", f"--format={LISTED}"))
    longest = min([4 * 3600.0, *(each.seconds for each in partitions if each.seconds is not None)])
    lines = [
        f"{_text(name)}:  # as Slurm calls its cluster",
        f"  hosts: {_text(socket.gethostname())}  # its login nodes: names, as a list, or with *",
        f"  scheduler: {NAME}",
        "  # kochi_root: DIRECTORY  # that all nodes see; needed only if a run asks for it",
        "  allocation:",
        *(f"    {line}" for line in (*_partition_lines(partitions), *_account_lines())),
        f"    # time: {time_limit(longest)}  # by default what the jobs request, else the "
        "partition's default",
        f"    max_workers: {AllocationSettings().max_workers}  # allocations at a time",
    ]
    return Description(name, "".join(f"{line}\n" for line in lines))


def node_facts(settings: AllocationSettings, settings_at: SettingsAt) -> Mapping[str, int]:
    said = run(["sinfo", "--all", "--noheader", "--exact", f"--format={LISTED}"], _PATIENCE)
    nodes, limits = map(_shown, ("nodes", "partitions"))
    name = settings.constraints.get("partition") or default_partition()
    return facts_of(read_partitions(said), nodes, limits, name, settings, settings_at)


def _shown(what: str) -> str:
    with contextlib.suppress(KochiError):
        return run(["scontrol", "--all", "--oneliner", "show", what], _PATIENCE)
    return ""  # the answer of sinfo must then suffice


def _partition_lines(found: Sequence[Partition]) -> Iterable[str]:
    default = next((each.name for each in found if each.is_default), None)
    if default is not None:
        yield f"partition: {_text(default)}  # Slurm's default"
    elif found:
        yield f"partition: {_text(found[0].name)}  # Slurm has no default: choose one of these"
    for each in found:
        longest = "no limit" if each.seconds is None else str(timedelta(seconds=each.seconds))
        gpus = "".join(
            f", {pluralize(count, f'GPU {model}'.strip())}" for model, count in each.gpus
        )
        features = f", features {', '.join(sorted(each.features))}" if each.features else ""
        yield (
            f"#   {each.name}: longest time {longest}; {pluralize(each.count or 0, 'node')} of "
            f"{pluralize(each.node.cores, 'core')}, {format_number(each.node.memory_mb)} MiB"
            f"{gpus}{features}"
        )


def _account_lines() -> Iterable[str]:
    found = _accounts()
    if found.names:
        default = found.default or found.names[0]
        yield f"# account: {_text(default)}  # Slurm's default; yours are {', '.join(found.names)}"


def _accounts() -> _Accounts:
    listing = ("--noheader", "--parsable2")
    user = getpass.getuser()
    with contextlib.suppress(KochiError):
        said = _ask("sacctmgr", *listing, "show", "associations", f"user={user}", "format=account")
        names = tuple(dict.fromkeys(filter(None, map(str.strip, said.splitlines()))))
        said = _ask("sacctmgr", *listing, "show", "user", user, "format=defaultaccount")
        return _Accounts(names, next(iter(said.split()), None))
    return _Accounts()


def _text(text: str) -> str:
    """A YAML text."""
    import yaml  # not at the top: only this function needs it

    try:
        is_plain = text.isprintable() and yaml.safe_load(text) == text
    except yaml.YAMLError:
        is_plain = False
    return text if is_plain else json.dumps(text)


def _ask(*command: str) -> str:
    try:
        return run(command, _PATIENCE)
    except UnreachableError as error:
        raise UnreachableError(
            f"Slurm is installed here, and does not answer: {error.message}",
            "Try again later; or, to run on this computer, type: export "
            "KOCHI_DEFAULT_MACHINE=local",
        ) from error
    except NoProgramError:
        raise
    except RefusedError as error:
        raise RefusedError(
            error.message, "Is this a login node of a cluster with Slurm?"
        ) from error


# ---- a controller in an allocation


def submit_controller(
    name: str,
    command: str,
    output: Path,
    settings: AllocationSettings,
    limit: str | None,
    purpose: str,
) -> None:
    if limit is not None:
        said = run(["sinfo", "--all", "--noheader", "--exact", f"--format={LISTED}"], _PATIENCE)
        partition = settings.constraints.get("partition") or default_partition()
        own = replace(settings, nodes=1, time=walltime_of(limit))
        limits_of(read_partitions(said), partition, own, lambda _: "-t, or controller: time")
    options = controller_arguments(name, output, settings, limit, purpose)
    run(["sbatch", *options], _CONTROLLER_PATIENCE, f"#!/bin/bash\nexec {command}\n")


def find_controller(name: str) -> ControllerJob | None:
    command = ["squeue", "--noheader", "--format=%i|%T|%r", "--me", f"--name={name}"]
    said = run(command, _CONTROLLER_PATIENCE)
    if not said:
        return None
    number, state, reason = said.splitlines()[0].split("|", 2)
    return ControllerJob(number, state, reason, state in ("PENDING", "CONFIGURING"))


def has_ended(id: str) -> bool:
    # squeue --jobs would report a number that Slurm has forgotten as an error like any other.
    return id not in run(["squeue", "--noheader", "--format=%A", "--me"], _PATIENCE).split()


def interrupt_controller(job: ControllerJob) -> None:
    how = [] if job.is_waiting else ["--signal=INT", "--batch"]
    run(["scancel", *how, job.id], _CONTROLLER_PATIENCE)


# ---- a program in an allocation

ALLOCATION, CORES_OF_ALLOCATION = ID, CORES
# A step beside the others, on the first node: it waits for nothing that they hold, and has all that
# the allocation has there.
_BESIDE = ("--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--relative=0", "--cpu-bind=none")


def can_enter() -> bool:
    return shutil.which("srun") is not None


def words_inside(allocation: str, words: Sequence[str], has_terminal: bool) -> list[str]:
    if "_" in allocation:  # srun knows the jobs of an array by their own numbers only
        question = ["squeue", "--noheader", "--format=%A", f"--jobs={allocation}"]
        allocation = run(question, _PATIENCE) or allocation
    # The current directory may not exist there.
    return [*_step(has_terminal), f"--jobid={allocation}", "--chdir=/", *words]


def words_in_new(
    name: str,
    settings: AllocationSettings,
    wanted: Wanted,
    words: Sequence[str],
    has_terminal: bool,
) -> list[str]:
    arguments = shell_arguments(name, settings, wanted)
    # Not srun alone: steps that a person starts in the shell would wait for the shell's own.
    salloc = [*without_outer_job_words(), "salloc", *arguments]
    return [*salloc, "srun", *_BESIDE, *_terminal(has_terminal), *words]


def _step(has_terminal: bool) -> list[str]:
    return [*without_outer_job_words(), "srun", "--quiet", *_BESIDE, *_terminal(has_terminal)]


def _terminal(has_terminal: bool) -> list[str]:
    return ["--pty"] if has_terminal else []
