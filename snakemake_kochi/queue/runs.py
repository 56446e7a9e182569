"""What stays of a run when its controller has ended: which jobs and workers were its own, and the
allocations it asked for. For people who look back; nothing else depends on it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from snakemake_kochi.errors import DamagedFileError, NameNotFoundError, nearest
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import read_next
from snakemake_kochi.queue.ticket import now

_log = logging.getLogger(__name__)

VERSION = 1
_RUN_VERSION = 2  # 1 has "taken_over" for "adopted"
_MOST_NAMED = 5


@dataclass(frozen=True)
class RunRecord:
    """runs/<controller>.json, written by the controller: when it first hands over tickets, and
    again at its end.

    Its jobs have numbers from `first_job` to `last_job` (others have some of these, too), its
    workers such from `first_worker` on. `adopted` are jobs of earlier controllers that it waited
    for. `ended` and `last_job` are None while it runs, and if it was killed.
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


@dataclass(frozen=True)
class AllocationNote:
    """allocations/<controller>-<allocation>.json, written by the controller once it has asked for
    an allocation: at which time, and for what, in words."""

    allocation: str
    submitted: str
    wanted: str


class RunFile:
    """The record of the calling controller's run."""

    def __init__(self, machine: MachinePaths, controller: str, directory: str) -> None:
        self._machine = machine
        self._controller = controller
        self._directory = directory
        self._record: RunRecord | None = None

    @property
    def first_worker(self) -> int | None:
        """None when nothing was handed over."""
        return None if self._record is None else self._record.first_worker

    def begin(self) -> None:
        """To be called before jobs are handed over, and before workers are started for them; of
        several calls the first one counts."""
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
        """Note that the run waits for a job of an earlier one."""
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
            # A full disk: the run is what counts.
            _log.warning("what is kept of the run cannot be written: %s", error)


def read_run(machine: MachinePaths, controller: str) -> RunRecord:
    """Raises FileNotFoundError, or DamagedFileError."""
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
    """All runs that handed over jobs, or those in a directory; the newest first. One whose file is
    damaged is left out with a warning."""
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
    """Raises NameNotFoundError, or DamagedFileError."""
    try:
        return read_run(machine, controller)
    except FileNotFoundError:
        known = nearest(controller, (run.controller for run in list_runs(machine)[:_MOST_NAMED]))
        raise NameNotFoundError(
            f"there is no run {controller} on machine {machine.name}; {known}",
            "List them with: kochi trace --list",
        ) from None


def note_allocations(
    machine: MachinePaths, controller: str, allocations: Iterable[str], wanted: str
) -> None:
    """Note that a controller has asked for allocations just now. For people: where it cannot be
    written, the run goes on without."""
    for allocation in allocations:
        note = AllocationNote(allocation, now(), wanted)
        with contextlib.suppress(OSError):
            make_directory(machine.allocations)
            path = machine.allocation_note(controller, allocation)
            write_atomically(path, to_json({"version": VERSION, **asdict(note)}))


def list_allocations(machine: MachinePaths, controller: str) -> list[AllocationNote]:
    """What a controller has asked for, in the order of time. A damaged note is left out."""
    found = []
    for path in machine.allocation_notes(controller):
        with contextlib.suppress(DamagedFileError, KeyError):
            data = read_json(path, VERSION)
            fields = (str(data[key]) for key in ("allocation", "submitted", "wanted"))
            found.append(AllocationNote(*fields))
    return sorted(found, key=lambda note: note.submitted)
