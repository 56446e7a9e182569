"""The cores, memory and GPUs that a worker on this node hands out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from snakemake_kochi.errors import WorkerError
from snakemake_kochi.queue.workers import Capacity
from snakemake_kochi.worker.node.memory import memory_mb_for_jobs

CUDA = "CUDA_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"

# Values of the variables that mean "no GPU"; CUDA also ignores all names after such a value.
_NONE = ("", "-1", "NoDevFiles")
_LIST_PATIENCE = 10.0  # seconds; a driver that hangs must not block a worker's start
_LISTED = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a worker may hand out.

    `names`: the devices, by index or UUID, as their libraries name them. `variables`: the
    environment variables that show the devices to a job. `is_given`: a person has named the GPUs,
    or none, and jobs see no others.
    """

    names: tuple[str, ...] = ()
    variables: tuple[str, ...] = (CUDA,)
    is_given: bool = False


def find_gpus(
    option: str | None, environment: Mapping[str, str], list_command: Sequence[str] | None = None
) -> Gpus:
    """The GPUs that a worker may hand out.

    `option` comes from a person: a number, or names separated by commas ("0,2"; a single one is
    "3,"). Without `option` the variables of the environment decide, as a scheduler sets them.
    Without these, `nvidia-smi -L` (or `list_command`) decides, if installed. Raises WorkerError for
    an invalid option.
    """
    visible = _visible(environment, list_command)
    if option is None:
        return visible
    if "," in option or not option.strip().isdecimal():
        return Gpus(_given_names(option), visible.variables, is_given=True)
    if len(option.strip()) > 4:
        raise WorkerError(f"--gpus {option[:40]}: as many as a node has were expected")
    count = int(option)
    if not visible.names:
        return Gpus(tuple(map(str, range(count))), visible.variables, is_given=True)
    if count > len(visible.names):
        raise WorkerError(
            f"--gpus {option}: this node shows {len(visible.names)} GPUs "
            f"({', '.join(visible.names)})",
            f"Use --gpus {len(visible.names)}, or none: it is what there is.",
        )
    return Gpus(visible.names[:count], visible.variables, is_given=True)


def _given_names(option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in option.split(",") if name.strip())
    good = all(re.fullmatch(r"\d+|[A-Za-z]+-[\w:./-]+", name) for name in names)
    if not names or not good or len(set(names)) < len(names):
        raise WorkerError(
            f"--gpus {option}: a number of GPUs was expected, or the index or UUID of each, "
            "separated by commas",
            "For example: --gpus 2, or --gpus 0,3, or --gpus 3, for just the one with index 3.",
        )
    return names


def _visible(environment: Mapping[str, str], list_command: Sequence[str] | None) -> Gpus:
    # AMD's HIP obeys CUDA's variable, too, unless its own is set.
    own = (CUDA, HIP) if HIP in environment else (CUDA,)
    if CUDA in environment:
        return Gpus(_names(environment[CUDA]), own)
    if ROCR in environment:
        # The indices of CUDA and HIP count within the devices that this variable selects.
        return Gpus(_names(environment[ROCR]), (ROCR,))
    if HIP in environment:
        return Gpus(_names(environment[HIP]), own)
    return Gpus(_listed(list_command), own)


def _names(value: str) -> tuple[str, ...]:
    names: list[str] = []
    for name in map(str.strip, value.split(",")):
        if name in _NONE:
            break
        names.append(name)
    return tuple(names)


def _listed(command: Sequence[str] | None) -> tuple[str, ...]:
    program = None if command is not None else shutil.which("nvidia-smi")
    command = [program, "-L"] if program is not None else command
    if command is None:
        return ()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIST_PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    # nvidia-smi counts devices by bus, CUDA by speed: only a UUID means the same device to both.
    return tuple(_LISTED.findall(done.stdout)) if done.returncode == 0 else ()


def capacity_of_this_node(
    cores: int | None = None,
    memory_mb: int | None = None,
    gpus: int | None = None,
    environment: Mapping[str, str] | None = None,
    most_memory_mb: int | None = None,
) -> Capacity:
    """The given amounts; for the others, the amounts that the calling process may use.

    Under a scheduler these are the amounts of its allocation rather than of the node. `environment`
    defaults to the process's own. Without `memory_mb` the memory is at most `most_memory_mb` (both
    in MiB).
    """
    own = os.environ if environment is None else environment
    return Capacity(
        cores or len(os.sched_getaffinity(0)),
        memory_mb_for_jobs(own, most_memory_mb) if memory_mb is None else memory_mb,
        len(find_gpus(None, own).names) if gpus is None else gpus,
    )


@cache
def gpus_of_this_node() -> int:
    """The number of GPUs of a worker that this process starts. Asks the driver once."""
    return len(find_gpus(None, os.environ).names)
