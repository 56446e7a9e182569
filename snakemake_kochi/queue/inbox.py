"""A controller's inbox for results."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    link_atomically,
    make_directory,
    move,
    random_word,
    safe_name,
    to_json,
    write_new,
)
from snakemake_kochi.files.together import Together
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths, removed_path
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue.controller_file import ControllerFile
from snakemake_kochi.queue.controllers import VERSION, Adopter, LockFile
from snakemake_kochi.queue.deliveries import ReadDeliveries
from snakemake_kochi.queue.ending import damaged_result
from snakemake_kochi.queue.entries import Entry
from snakemake_kochi.queue.job_set import JobSet
from snakemake_kochi.queue.result import SEEN_LATE, Result, may_be_late, read_result_now
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.wakeup import WakeUp, notify

_log = logging.getLogger(__name__)

# At its end, a controller leaves so many deliveries to the next packer.
_MANY = 32
_GROUP = 64  # deliveries that are read before the first of them is passed on


class Inbox:
    """A directory with links to the results of one controller's tickets, and a wake-up FIFO.

    One thread waits; any other thread may call `wake` and `adopt`. Tickets name the inbox by its
    `identity`.
    """

    def __init__(self, machine: MachinePaths, identity: str, file: ControllerFile) -> None:
        self.identity = identity
        self._machine = machine
        self._paths = paths = machine.controller(identity)
        self._file = file
        self._queues: tuple[str, ...] = ()
        self._watched: tuple[ReadDeliveries, ...] = (ReadDeliveries(paths),)
        self._wakeup = WakeUp(paths.wakeup)
        # The nonce is left out: a job has one result, and a message in place of a result also ends
        # the job.
        self._delivered = JobSet()
        self._together = Together()
        # Since when damaged results were seen that this node may show late.
        self._incomplete: dict[Path, float] = {}
        self._shards: set[Path] = set()  # of `delivered`, which are there
        self._notices = Notices(_log)

    @classmethod
    def create(
        cls,
        machine: MachinePaths,
        directory: str | None = None,
        outputs: Collection[str] | None = None,
        allocation: str | None = None,
        locks: Iterable[str] = (),
        label: str = "",
    ) -> Inbox:
        """Make a new inbox for the calling process, which submits tickets of one directory.

        If this controller is killed, the next controller of that directory looks for its orphans.
        `outputs` are all files that its tickets may write, relative to the directory (None: any).
        `allocation` is the scheduler's name of the allocation in which the process runs. `locks`
        are the files by which it keeps others out of the directory. `label`: with what its
        identity begins, and so the names of its queues and allocations; by default the host.
        """
        node = this_node()
        readable = safe_name(label or node.host).lstrip(".-") or "run"
        identity = f"{readable}-{os.getpid()}-{random_word()}"
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
        """Start the heartbeat, which goes on until the inbox is closed.

        A controller without a heartbeat for long is presumed dead on other hosts.
        """
        self._file.start()

    @property
    def adopter(self) -> Adopter | None:
        """The controller that adopted this one's jobs, if any."""
        return self._file.adopter

    def note_queue(self, name: str) -> None:
        """Note that tickets are about to be submitted to a queue.

        An adopter of this controller's jobs looks only into the queues noted here, or into all if
        none was noted. Raises KochiError when the note cannot be written, or when another
        controller adopted the jobs.
        """
        self._file.require_no_adopter()
        if name in self._queues:
            return
        queues = (*self._queues, name)
        try:
            self._file.write(queues=queues)
        except OSError as error:
            raise KochiError(
                f"no ticket was submitted: cannot write {self._paths.state}: {error.strerror}"
            ) from error
        self._queues = queues

    def adopt(self, machine: MachinePaths, dead: str) -> None:
        """Also watch the inbox of a dead controller, because jobs of it may still be running.

        Its `inbox/` and `delivered/` stay as they are when this inbox is closed.
        """
        paths = machine.controller(dead)
        make_directory(paths.inbox)
        make_directory(paths.delivered)
        with contextlib.suppress(OSError):  # without symbolic links, results are found by polling
            link_atomically(paths.wakeup, self._paths.wakeup)
        self._watched = (*self._watched, ReadDeliveries(paths))

    def wait(self, timeout: float, is_look: bool = True) -> list[Result]:
        """Sleep until notified, at most `timeout` seconds, and return the results that came in.

        With `is_look` it looks into the inbox in both cases, because no notification arrives from
        other nodes. Each result is returned once. Damaged tickets of other controllers are
        delivered, too, so the caller must skip jobs that are not its own. Raises KochiError when
        another controller adopted the jobs: the results are then for the adopter.
        """
        is_notified = self._wakeup.wait(timeout)
        self._file.require_no_adopter()
        if not (is_notified or is_look or self._wakeup.is_silent):
            return []
        return [result for read in self._watched for result in self._take_in(read, is_notified)]

    def _take_in(self, read: ReadDeliveries, is_notified: bool) -> Iterator[Result]:
        paths = read.paths
        try:
            names = sorted(read.inbox.names(is_notified))
        except OSError as error:
            self._notices.fault(f"cannot list the results in {paths.inbox}", error)
            return
        self._notices.over(f"cannot list the results in {paths.inbox}")
        deliveries = {
            name: int(number)
            for name in names
            if name not in read and (number := name.split("-")[0]).isdecimal()
        }
        # In groups: the first results are not to wait for thousands of others.
        for group in _groups(list(deliveries.items())):
            reads = [partial(self._read, paths.inbox / name, job) for name, job in group]
            for (name, job), outcome in zip(group, self._together(reads), strict=True):
                if (result := self._take(read, name, job, outcome)) is not None:
                    yield from self._new(result)
        with contextlib.suppress(OSError):  # the next look tries again
            read.remove_many()

    def _take(
        self, read: ReadDeliveries, name: str, job: int, outcome: Result | Exception
    ) -> Result | None:
        """Note a delivery, of which `outcome` is what was read, or why it could not be read."""
        if isinstance(outcome, FileNotFoundError):
            return None
        if isinstance(outcome, OSError):
            # The next look may be able to read it.
            self._notices.fault("cannot read a result", outcome)
            return None
        if isinstance(outcome, Exception):
            raise outcome
        try:
            self._note_read(read, name, job)
        except OSError as error:
            # The result counts although it will be found here again.
            self._notices.fault("cannot move a result that was read", error)
        else:
            self._notices.over("cannot move a result that was read")
        return outcome

    def _note_read(self, read: ReadDeliveries, name: str, job: int) -> None:
        try:
            read.note(name, job)
        except OSError:
            # A rename needs no room on the disk.
            self._move(read.paths.inbox / name, read.paths.delivered_file(name, job))

    def _move(self, path: Path, delivered: Path) -> None:
        """Move a delivery. Its shard is made only once: 256 results share it. Raises OSError."""
        if delivered.parent not in self._shards:
            make_directory(delivered.parent)
            self._shards.add(delivered.parent)
        try:
            move(path, delivered)
        except FileNotFoundError:
            # The shard may have been removed meanwhile. If the delivery is gone, this fails again.
            make_directory(delivered.parent)
            move(path, delivered)

    def _read(self, path: Path, job: int) -> Result:
        """Read a result; a damaged one counts as failed. Raises OSError."""
        try:
            result = read_result_now(path)
        except DamagedFileError as error:
            first_seen = self._incomplete.setdefault(path, time.monotonic())
            if time.monotonic() < first_seen + SEEN_LATE and may_be_late(path):
                # A later look shows the rest; the other results need not wait for it.
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path)) from error
            _log.warning("%s", error.message)
            result = damaged_result(self._machine, Entry(path, job, 1), error.message)
        self._incomplete.pop(path, None)
        return result

    def _new(self, result: Result) -> Iterator[Result]:
        # A process that completes what a dead worker began may deliver a result a second time,
        # because it cannot know whether the first delivery was read.
        if result.job not in self._delivered:
            self._delivered.add(result.job)
            yield result

    def find_undelivered(self, jobs: Iterable[int]) -> list[Result]:
        """The results of those jobs that have ended without a delivery.

        A delivery may be lost with a node, or by a filesystem. Costs a call for each job.
        """
        found: list[Result] = []
        for job in jobs:
            # A result that is unknown now is looked for again later.
            with contextlib.suppress(OSError):
                found += self._new(self._read(self._machine.job(job).result, job))
        return found

    def wake(self) -> None:
        """Make a `wait` in another thread return."""
        notify(self._paths.wakeup)

    def close(self) -> None:
        """Remove the inbox. Later results stay with their jobs.

        If there are jobs that have not ended, call `leave` instead.
        """
        self._file.stop()
        self._close()
        directory = self._paths.directory
        if len(self._delivered) >= _MANY:
            # The packer that starts at the end of the run removes it. Where a call takes long, this
            # process would be busy for many seconds.
            with contextlib.suppress(OSError):
                move(directory, removed_path(directory, random_word()))
                return
        shutil.rmtree(directory, ignore_errors=True)

    def leave(self) -> None:
        """Close the inbox, but leave its files to the next controller of the directory.

        The next controller may be on any host. The effect is the same as if this controller had
        been killed. The next controller must not start beside jobs that have not ended.
        """
        self._file.stop()
        with contextlib.suppress(OSError):  # then the end of the process shows it
            self._file.write(left=True)
        self._close()

    def _close(self) -> None:
        self._wakeup.close()
        for read in self._watched:
            read.close()


def _groups(deliveries: Sequence[tuple[str, int]]) -> Iterator[Sequence[tuple[str, int]]]:
    for start in range(0, len(deliveries), _GROUP):
        yield deliveries[start : start + _GROUP]
