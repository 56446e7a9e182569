"""Where a controller hears how its tickets ended."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    link_atomically,
    list_names,
    make_directory,
    move,
    to_json,
    write_new,
)
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import ControllerPaths, MachinePaths
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue.controllers import VERSION, Adopter, ControllerFile, LockFile
from snakemake_kochi.queue.entries import Entry, JobSet
from snakemake_kochi.queue.jobs import damaged_result
from snakemake_kochi.queue.result import Result, read_result
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.wakeup import WakeUp, notify

_log = logging.getLogger(__name__)


class Inbox:
    """A directory for the results of one controller's tickets, as links, and a wake-up FIFO.

    One thread waits; `wake` and `adopt` may be called from any other. Tickets name it by its
    `identity`.
    """

    def __init__(self, machine: MachinePaths, identity: str, file: ControllerFile) -> None:
        self.identity = identity
        self._machine = machine
        self._paths = paths = machine.controller(identity)
        self._file = file
        self._queues: tuple[str, ...] = ()
        self._watched: tuple[ControllerPaths, ...] = (paths,)
        self._wakeup = WakeUp(paths.wakeup)
        # Not by nonce: a job has one result, and what is told in its place is the end of it, too.
        self._delivered = JobSet()
        self._notices = Notices(_log)

    @classmethod
    def create(
        cls,
        machine: MachinePaths,
        directory: str | None = None,
        outputs: Collection[str] | None = None,
        allocation: str | None = None,
        locks: Iterable[str] = (),
    ) -> Inbox:
        """Make a new inbox for the calling process, which hands over tickets of one directory:
        there the next controller looks for what this one leaves when it is killed. `outputs` are
        all files that its tickets may write, relative to the directory (None: any), `allocation`
        is the scheduler's name of that in which the process is, `locks` the files by which it keeps
        others out of the directory."""
        node = this_node()
        host = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in node.host)
        identity = f"{host.strip('.')[:64] or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"
        paths = machine.controller(identity)
        make_directory(paths.inbox)
        make_directory(paths.delivered)
        if outputs is not None:
            data = {"version": VERSION, "outputs": sorted(outputs)}
            write_new(paths.outputs, to_json(data))
        process = ProcessIdentity.of(os.getpid())
        assert process is not None
        state = {
            "version": VERSION,
            "controller": identity,
            "node": vars(node),
            "process": vars(process),
            "directory": directory,
            "started": now(),
            "allocation": allocation,
            "locks": [asdict(found) for path in locks if (found := LockFile.of(path)) is not None],
        }
        return cls(machine, identity, ControllerFile(machine, identity, state))

    def give_signs_of_life(self) -> None:
        """From now on until it is closed: a controller that gives none for long is presumed dead
        on other hosts."""
        self._file.start()

    @property
    def adopter(self) -> Adopter | None:
        """The controller that adopted this one's jobs, if one did."""
        return self._file.adopter

    def note_queue(self, name: str) -> None:
        """Note that tickets are about to be handed over to a queue: who adopts the jobs of
        this controller looks only into the queues it noted, or into all if it noted none.

        Raises KochiError when that cannot be written, or when another one adopted its jobs.
        """
        self._file.require_no_adopter()
        if name in self._queues:
            return
        queues = (*self._queues, name)
        try:
            self._file.write(queues=queues)
        except OSError as error:
            raise KochiError(
                f"no ticket was handed over: cannot write {self._paths.state}: {error.strerror}"
            ) from error
        self._queues = queues

    def adopt(self, machine: MachinePaths, dead: str) -> None:
        """Also watch the inbox of a controller that is dead: jobs of it may be running still.

        Its `inbox/` and `delivered/` stay as they are when this inbox is closed.
        """
        paths = machine.controller(dead)
        make_directory(paths.inbox)
        make_directory(paths.delivered)
        with contextlib.suppress(OSError):  # without symbolic links: results are looked for
            link_atomically(paths.wakeup, self._paths.wakeup)
        self._watched = (*self._watched, paths)

    def wait(self, timeout: float) -> list[Result]:
        """Sleep until notified, at most `timeout` seconds, and return the results that came in.

        Each is returned once. Damaged tickets of other controllers are delivered, too: skip jobs
        that are not yours. Raises KochiError when another controller adopted its jobs:
        the results are for that one.
        """
        self._wakeup.wait(timeout)
        self._file.require_no_adopter()
        return [result for paths in self._watched for result in self._take_in(paths)]

    def _take_in(self, paths: ControllerPaths) -> Iterator[Result]:
        try:
            names = sorted(list_names(paths.inbox))
        except OSError as error:
            self._notices.fault(f"results in {paths.inbox} cannot be taken in now", error)
            return
        self._notices.over(f"results in {paths.inbox} cannot be taken in now")
        for name in names:
            job = name.split("-")[0]
            if job.isdecimal() and (result := self._take(paths, name, int(job))) is not None:
                yield from self._new(result)

    def _take(self, paths: ControllerPaths, name: str, job: int) -> Result | None:
        path = paths.inbox / name
        try:
            result = self._read(path, job)
        except FileNotFoundError:
            return None
        except OSError as error:
            # Perhaps it can be read with the next look.
            self._notices.fault("a result cannot be read yet", error)
            return None
        try:
            # Not unlinked: we may be killed before anything is done about it.
            delivered = paths.delivered_file(name, job)
            make_directory(delivered.parent)
            move(path, delivered)
        except OSError as error:
            # What was read counts, though it will be met here again.
            self._notices.fault("a result cannot be put away yet", error)
        else:
            self._notices.over("a result cannot be put away yet")
        return result

    def _read(self, path: Path, job: int) -> Result:
        """Raises OSError."""
        try:
            return read_result(path)
        except DamagedFileError as error:
            _log.warning("%s", error.message)
            return damaged_result(self._machine, Entry(path, job, 1), error.message)

    def _new(self, result: Result) -> Iterator[Result]:
        # Who completes what a dead worker began cannot know whether the delivery was read.
        if result.job not in self._delivered:
            self._delivered.add(result.job)
            yield result

    def find_undelivered(self, jobs: Iterable[int]) -> list[Result]:
        """The results of those jobs that have ended without a delivery: it may be
        lost with a node, or by a filesystem. Costs a call for each job."""
        found: list[Result] = []
        for job in jobs:
            # What is not known now is looked for again.
            with contextlib.suppress(OSError):
                found += self._new(self._read(self._machine.job(job).result, job))
        return found

    def wake(self) -> None:
        """Make a `wait` in another thread return."""
        notify(self._paths.wakeup)

    def close(self) -> None:
        """Remove the inbox. Results that come later stay with their jobs.

        With jobs that have not ended, `leave` it.
        """
        self._file.stop()
        self._wakeup.close()
        shutil.rmtree(self._paths.inbox.parent, ignore_errors=True)

    def leave(self) -> None:
        """Close it, but leave it to the next controller of the directory, on whatever host, as if
        this one had been killed: it must not start beside jobs that have not ended."""
        self._file.stop()
        with contextlib.suppress(OSError):  # then the end of the process tells it
            self._file.write(left=True)
        self._wakeup.close()
