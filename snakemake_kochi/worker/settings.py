"""A worker's settings: a file that one process writes to start a worker, and that the worker reads.

This module has all options. A new option needs a field here, and the code that uses it.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError, WorkerError
from snakemake_kochi.files import (
    make_directory,
    read_json,
    show_new_files,
    to_json,
    write_atomically,
)
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.tickets.ticket import Kind

VERSION = 1

# Seconds that a worker without `stay` waits for a run that goes on: the run takes so long at most
# to submit the jobs that depend on a job that has ended. On a cluster Snakemake waits for a minute
# for a job's outputs (`--latency-wait` of the profile `cluster` and of `kochi batch`).
BETWEEN_JOBS = 75.0
# Seconds of its allocation that a worker needs in addition to its jobs' time, to start and to end.
START_AND_END = 60.0
# Seconds until a node sees a file that another node has just written.
_PATIENCE = 10.0
_PAUSE = 0.5


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker is started, and how it behaves. None: the worker finds the value itself.

    `root` is KOCHI_ROOT, `machine` the machine's name. `worker` is a number from
    `queue.by_hand.reserve_workers`.

    Capacity: the worker hands out `cores`, `memory_mb` (MiB) and `gpus` (a number, or names
    separated by commas), by default all that it may use. `most_memory_mb` (MiB) limits the memory
    that it hands out if it finds more.

    Time, in seconds: the worker is gone after `walltime`. `allocation_seconds` is the time that was
    requested for its allocation; it serves where Slurm does not report the time. A job that must
    end has `grace` between SIGTERM and SIGKILL. An idle worker looks for events on other nodes
    after `idle_wait`. When its queues are empty, a worker with `stay` waits for `idle_timeout`, or
    without limit if that is None; a worker without `stay` waits for BETWEEN_JOBS for more jobs of
    a run that goes on.

    `controller` is the number of a run: the worker claims only the tickets of that run, unless
    `any_run`. `first` are the kinds of jobs that it claims before others. `allocation` is the
    scheduler's name of the worker's allocation, `allocation_nodes` the number of its nodes, where
    the scheduler does not tell it. In an allocation the worker also leaves when it has no job and
    its controller is dead. The worker ends when the process `parent` ends; with `owns_queues`, it
    then cancels the jobs of its queues and removes these. With `echo` it shows the jobs' output.
    """

    root: str
    machine: str
    queues: tuple[str, ...] = ()
    worker: int | None = None
    cores: int | None = None
    memory_mb: int | None = None
    most_memory_mb: int | None = None
    gpus: str | None = None
    walltime: float | None = None
    allocation_seconds: float | None = None
    grace: float = 5.0
    stay: bool = False
    idle_timeout: float | None = None
    idle_wait: float = 2.0
    controller: str | None = None
    any_run: bool = False
    first: tuple[Kind, ...] = ()
    allocation: str | None = None
    allocation_nodes: int = 1
    parent: int | None = None
    owns_queues: bool = False
    echo: bool = False

    @property
    def kochi_root(self) -> Root:
        return Root(Path(self.root))

    @property
    def paths(self) -> MachinePaths:
        return self.kochi_root.machine(self.machine)

    @property
    def path(self) -> Path:
        """The path of the settings file.

        The file is in the worker's directory if the worker has a number. Otherwise all workers that
        are started with equal settings share one file.
        """
        if self.worker is not None:
            return Path(self.paths.layout.worker(self.worker).settings)
        return self.paths.worker_settings(hashlib.sha256(self.to_json()).hexdigest())

    def to_json(self) -> bytes:
        return to_json({"version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkerSettings:
        """The settings in the form that `to_json` writes. Raises KochiError."""
        values = {key: value for key, value in data.items() if key != "version"}
        try:
            values["queues"] = tuple(values.get("queues", ()))
            values["first"] = tuple(map(Kind.from_dict, values.get("first", ())))
            return cls(**values)
        except (TypeError, ValueError, KeyError) as error:
            raise KochiError(f"not the settings of a worker: {error}") from error


def save_settings(settings: WorkerSettings) -> Path:
    """Write the file for `start_command`; return its path. Raises OSError."""
    path = settings.path
    make_directory(path.parent)
    write_atomically(path, settings.to_json())
    return path


def settings_of(arguments: Sequence[str]) -> WorkerSettings:
    """The settings of a command line: a file, and values that are known only inside an allocation.

    Raises KochiError.
    """
    parser = argparse.ArgumentParser(prog="kochi worker")
    parser.add_argument("settings", type=Path)
    parser.add_argument("--allocation")
    for name in ("--worker", "--cores", "--parent"):
        parser.add_argument(name, type=int)
    given = vars(parser.parse_args(arguments))
    path = given.pop("settings")
    found = {name: value for name, value in given.items() if value is not None}
    settings = replace(read_settings(path), **found)
    if settings.allocation is not None:  # who started this worker here has secured it here
        settings.kochi_root.secure(settings.paths.directory)
    return settings


def read_settings(path: Path, patience: float = _PATIENCE) -> WorkerSettings:
    """Read the settings from a file.

    Raises DamagedFileError, also for a file of another user; WorkerError if the file cannot be
    read, or does not appear on this node within `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return WorkerSettings.from_json(read_json(path, VERSION, is_ours=True))
        except FileNotFoundError as error:
            if time.monotonic() >= deadline:
                raise WorkerError(
                    f"this node does not see {path}",
                    "KOCHI_ROOT must be a directory that all nodes see.",
                ) from error
            show_new_files(path.parent)
            time.sleep(_PAUSE)
        except OSError as error:
            raise WorkerError(f"{path} cannot be read: {error}") from error
        except DamagedFileError:
            raise
        except KochiError as error:
            raise DamagedFileError(f"{path}: {error.message}") from error
