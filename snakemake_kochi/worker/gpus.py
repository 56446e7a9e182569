"""Which GPUs a worker has to give, by the names their libraries know them by."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snakemake_kochi.errors import WorkerError

CUDA = "CUDA_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"

# What is set in the environment says that there is none; CUDA also ignores all names after it.
_NONE = ("", "-1", "NoDevFiles")
_LIST_PATIENCE = 10.0  # seconds; a driver that hangs must not keep the worker from starting
_LISTED = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")


@dataclass(frozen=True)
class Gpus:
    """`names` of the devices (indices or UUIDs), `variables` that show them to a job.

    `is_given`: somebody said which there are, also if there are none: jobs see no others.
    """

    names: tuple[str, ...] = ()
    variables: tuple[str, ...] = (CUDA,)
    is_given: bool = False


def find_gpus(
    option: str | None, environment: Mapping[str, str], list_command: Sequence[str] | None = None
) -> Gpus:
    """What a worker may hand out.

    `option` is what a person said: a number, or names with commas between ("0,2"; one is "3,").
    Else the environment decides, as a scheduler sets it, and else `nvidia-smi -L` (or
    `list_command`) where there is one. Raises WorkerError for an option that cannot be.
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
    # AMD's HIP heeds CUDA's variable, too; but where its own is set, that one wins.
    own = (CUDA, HIP) if HIP in environment else (CUDA,)
    if CUDA in environment:
        return Gpus(_names(environment[CUDA]), own)
    if ROCR in environment:
        # Those of CUDA and HIP count within what this one leaves.
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
    # Its indices are in the order of the bus, CUDA's in that of speed: a UUID means one device.
    return tuple(_LISTED.findall(done.stdout)) if done.returncode == 0 else ()
