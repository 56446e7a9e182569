"""The record of a run after its controller has ended: its jobs, workers and allocation requests.

The records are for people only; no other part depends on them.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import asdict, dataclass, replace
from typing import Any

from snakemake_kochi.errors import DamagedFileError, NameNotFoundError, nearest
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import read_next
from snakemake_kochi.queue.ticket import now

_log = logging.getLogger(__name__)

VERSION = 1
_RUN_VERSION = 2  # version 1 has "taken_over" for "adopted"
_MOST_NAMED = 5


@dataclass(frozen=True)
class RunRecord:
    """runs/<controller>.json, written by the controller.

    It is written when the controller first submits tickets, and again at the end of the run. The
    run's jobs have numbers from `first_job` to `last_job`, its workers have numbers from
    `first_worker` on; other runs have some of these numbers, too. `adopted` are jobs of earlier
    controllers for which the run waited. `ended` and `last_job` are None while the run lasts, and
    if it was killed.
    """

    controller: str
    directory: str
    started: str
    first_job: int
    first_worker: int
    last_job: int | None = None
    ended: str | None = None
    adopted: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"version": _RUN_VERSION, **asdict(self)}


class RunFile:
    """The record of the calling controller's run."""

    def __init__(self, machine: MachinePaths, controller: str, directory: str) -> None:
        self._machine = machine
        self._controller = controller
        self._directory = directory
        self._record: RunRecord | None = None

    @property
    def first_worker(self) -> int | None:
        """The first worker number of the run; None when no ticket was submitted."""
        return None if self._record is None else self._record.first_worker

    def begin(self) -> None:
        """Begin the record; the first of several calls counts.

        Call this before jobs are submitted, and before workers are started for them.
        """
        if self._record is None:
            self._record = RunRecord(
                controller=self._controller,
                directory=self._directory,
                started=now(),
                first_job=read_next(self._machine, "job"),
                first_worker=read_next(self._machine, "worker"),
            )
            self._write(self._record)

    def adopt(self, job: int) -> None:
        """Note that the run waits for a job of an earlier run."""
        self.begin()
        assert self._record is not None
        self._record = replace(self._record, adopted=(*self._record.adopted, job))

    def end(self) -> None:
        if self._record is not None:
            last = None
            with contextlib.suppress(DamagedFileError):
                last = read_next(self._machine, "job") - 1
            self._record = replace(self._record, ended=now(), last_job=last)
            self._write(self._record)

    def _write(self, record: RunRecord) -> None:
        try:
            make_directory(self._machine.runs)
            path = self._machine.run(self._controller)
            write_atomically(path, to_json(record.to_dict()))
        except OSError as error:
            # On a full disk, for example: the run is more important than its record.
            _log.warning("cannot write the record of the run: %s", error)


def read_run(machine: MachinePaths, controller: str) -> RunRecord:
    """Read the record of a run. Raises FileNotFoundError or DamagedFileError."""
    path = machine.run(controller)
    data = read_json(path, _RUN_VERSION)
    try:
        last, ended = data["last_job"], data["ended"]
        return RunRecord(
            controller=str(data["controller"]),
            directory=str(data["directory"]),
            started=str(data["started"]),
            first_job=int(data["first_job"]),
            first_worker=int(data["first_worker"]),
            last_job=None if last is None else int(last),
            ended=None if ended is None else str(ended),
            adopted=tuple(map(int, data["adopted" if "adopted" in data else "taken_over"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path}: not the record of a run ({error!r})") from error


def list_runs(machine: MachinePaths, directory: str | None = None) -> list[RunRecord]:
    """All runs that submitted jobs, or those in one directory; the newest first.

    A run whose file is damaged is left out with a warning.
    """
    found = []
    for path in machine.runs.glob("*.json"):
        try:
            run = read_run(machine, path.stem)
        except DamagedFileError as error:
            _log.warning("%s", error.message)
            continue
        if directory is None or run.directory == directory:
            found.append(run)
    return sorted(found, key=lambda run: run.started, reverse=True)


def find_run(machine: MachinePaths, controller: str) -> RunRecord:
    """The record of a run. Raises NameNotFoundError or DamagedFileError."""
    try:
        return read_run(machine, controller)
    except FileNotFoundError:
        known = nearest(controller, (run.controller for run in list_runs(machine)[:_MOST_NAMED]))
        raise NameNotFoundError(
            f"there is no run {controller} on machine {machine.name}; {known}",
            "List them with: kochi trace --list",
        ) from None
