"""How a ticket ends: the records of its attempts and its result, published and delivered once."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal as signals
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import (
    LINK_REFUSED,
    answered,
    is_there,
    make_directory,
    move,
    read_json,
    to_json,
    write_exclusively,
)
from snakemake_kochi.paths import JobPaths, MachinePaths, QueuePaths
from snakemake_kochi.processes import Node, ProcessIdentity
from snakemake_kochi.queue.entries import Entry, controller_names
from snakemake_kochi.queue.ticket import Ticket, now
from snakemake_kochi.queue.wakeup import notify

_log = logging.getLogger(__name__)

VERSION = 2
Reason = Literal[
    "success", "failed", "signal", "out of memory", "timeout", "cancelled", "node failed", "lost"
]
# Keys of a result that earlier releases did not write.
_LATER = frozenset({"outputs", "runner", "cpu_seconds", "peak_memory_mb"})
# Ends of an attempt that cost the ticket nothing: the ticket goes back to its queue.
UncountedReason = Literal["drained", "out of time", "node failed", "lost"]


@dataclass(frozen=True)
class Attempt:
    """One execution of a ticket by one worker, written once, before the job's first instruction.

    `process` is the job's main process, which leads a session and a process group of its own.
    `runner` is the runner that executes it: "shell", "zygote" or "command". `skipped_runners` is
    the reason, for people, why a faster runner that was chosen for the ticket was not used.
    """

    job: int
    attempt: int
    nonce: str
    worker: int
    node: Node
    process: ProcessIdentity
    started: str
    runner: str = "command"
    skipped_runners: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def read_attempt(path: Path) -> Attempt:
    """Read an attempt. Raises FileNotFoundError or DamagedFileError."""
    data = read_json(path, VERSION)
    try:
        return Attempt(
            job=int(data["job"]),
            attempt=int(data["attempt"]),
            nonce=str(data["nonce"]),
            worker=int(data["worker"]),
            node=Node.from_dict(data["node"]),
            process=ProcessIdentity.from_dict(data["process"]),
            started=str(data["started"]),
            runner=str(data.get("runner", "command")),  # the only runner of that release
            skipped_runners=str(data.get("skipped_runners", data.get("passed_over", ""))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path}: not an attempt ({error!r})") from error


@dataclass(frozen=True)
class Result:
    """How a ticket ended.

    `reason` is "success", "failed" (with an exit status, or with a `detail` when nothing could be
    executed), "signal" (killed by the signal of that number), "out of memory" (killed by the kernel
    for that reason), "timeout" (ended after its run time), "cancelled", "node failed" (no node
    could execute it), or "lost" (its workers died). `worker` is None and `node` is "" for a ticket
    that no worker had. `started` and `ended` are ISO 8601 times with microseconds; `log` is the
    path of the job's output. `outputs` maps each file of the ticket's `outputs` that existed after
    a success to its time in nanoseconds since 1970 and its size in bytes. `runner` is the runner
    that executed the attempt, "" for a ticket that was never executed. `cpu_seconds` is the CPU
    time of the job's main process and of all processes that it waited for. `peak_memory_mb` is the
    largest memory, in MiB, that a single one of these processes ever had. Both are None when
    unknown.
    """

    job: int
    attempt: int
    nonce: str
    worker: int | None
    node: str
    reason: Reason
    exit_status: int | None
    signal: int | None
    started: str | None
    ended: str
    log: str
    detail: str = ""
    outputs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    runner: str = ""
    cpu_seconds: float | None = None
    peak_memory_mb: int | None = None

    @property
    def ok(self) -> bool:
        return self.reason == "success"

    def describe(self) -> str:
        """The result in a few words: "succeeded", "exit status 1", "killed by SIGKILL"."""
        text = {
            "success": "succeeded",
            "failed": "failed" if self.exit_status is None else f"exit status {self.exit_status}",
            "signal": f"killed by {_signal_name(self.signal)}",
            "out of memory": "out of memory",
            "timeout": "timeout",
            "cancelled": "cancelled",
            "node failed": "node failed",
            "lost": "lost",
        }[self.reason]
        return f"{text}: {self.detail}" if self.detail else text

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: Path) -> Result:
        outputs = data.get("outputs", {})  # missing in version 1
        try:
            known = {key: data[key] for key in cls.__dataclass_fields__ if key not in _LATER}
            seen = {name: (int(time), int(size)) for name, (time, size) in outputs.items()}
            cpu_seconds, peak = data.get("cpu_seconds"), data.get("peak_memory_mb")
            result = cls(
                **known,
                outputs=seen,
                runner=str(data.get("runner", "")),
                cpu_seconds=None if cpu_seconds is None else float(cpu_seconds),
                peak_memory_mb=None if peak is None else int(peak),
            )
        except KeyError as error:
            raise DamagedFileError(f"{where}: key {error} is missing") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{where}: not a result ({error})") from error
        numbers = (result.exit_status, result.signal, result.worker)
        if (
            result.reason not in get_args(Reason)
            or not isinstance(result.job, int)
            or not isinstance(result.attempt, int)
            or not all(number is None or isinstance(number, int) for number in numbers)
        ):
            raise DamagedFileError(f"{where}: not a result: {dict(data)}")
        return result


def read_result(path: Path) -> Result:
    """Read a result. Raises FileNotFoundError or DamagedFileError."""
    return Result.from_dict(read_json(path, VERSION), path)


@dataclass(frozen=True)
class EndedAttempt:
    """How an attempt ended that was not the last; its ticket went back to the queue.

    `reason` is "drained" (its worker was stopped), "out of time" (its worker reached the end of its
    walltime, and the attempt had had most of it), "node failed" (its node could not execute it), or
    "lost" (its worker died). `nonce` is None when the attempt never began.
    """

    job: int
    attempt: int
    nonce: str | None
    worker: int
    node: str
    reason: UncountedReason
    ended: str
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def read_ended_attempt(path: Path) -> EndedAttempt:
    """Read the end of an attempt. Raises FileNotFoundError or DamagedFileError."""
    data = read_json(path, VERSION)
    try:
        ended = EndedAttempt(**{key: data[key] for key in EndedAttempt.__dataclass_fields__})
    except KeyError as error:
        raise DamagedFileError(f"{path}: key {error} is missing") from error
    if ended.reason not in get_args(UncountedReason):
        expected = ", ".join(get_args(UncountedReason))
        raise DamagedFileError(f"{path}: key 'reason': {ended.reason!r} is not one of: {expected}")
    return ended


def _signal_name(number: int | None) -> str:
    try:
        return signals.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def new_nonce() -> str:
    return secrets.token_hex(8)


def unexecuted_result(
    machine: MachinePaths,
    entry: Entry,
    reason: Literal["failed", "cancelled", "lost", "node failed", "timeout"],
    detail: str = "",
    node: str = "",
) -> Result:
    """The result of a ticket that ends without a completed execution."""
    return Result(
        job=entry.job,
        attempt=entry.attempt,
        nonce=new_nonce(),
        worker=entry.worker,
        node=node,
        reason=reason,
        exit_status=None,
        signal=None,
        started=None,
        ended=now(),
        log=str(machine.job(entry.job).log),
        detail=detail,
    )


def deliver(machine: MachinePaths, result: Result, controller: str) -> None:
    """Put a result into a controller's inbox and notify it.

    A controller that is gone gets nothing.
    """
    paths = machine.controller(controller)
    delivery = paths.delivery(result.job, result.nonce)
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        try:
            # The delivery is a second name of the result's file, not a copy, so that there is only
            # one text.
            answered(partial(os.link, machine.job(result.job).result, delivery))
        except OSError as error:
            # Some filesystems (AFS, BeeGFS before 7) link within one directory only.
            if error.errno not in LINK_REFUSED:
                raise
            write_exclusively(delivery, to_json(result.to_dict()))
    notify(paths.wakeup)


def damaged_result(machine: MachinePaths, entry: Entry, why: str) -> Result:
    """The result that a controller gets in place of one that cannot be read.

    Its nonce is always the same, so it is reported once, however often the damage is found.
    """
    detail = f"its result cannot be read: {why}"
    return replace(unexecuted_result(machine, entry, "failed", detail), nonce="damaged")


def _deliver_damage(machine: MachinePaths, entry: Entry, controller: str, why: str) -> None:
    paths = machine.controller(controller)
    result = damaged_result(machine, entry, why)
    with contextlib.suppress(FileNotFoundError):  # the controller is gone
        write_exclusively(paths.delivery(entry.job, result.nonce), to_json(result.to_dict()))
    notify(paths.wakeup)


def end_ticket(machine: MachinePaths, path: Path, ticket: Ticket, result: Result) -> bool:
    """Publish the result of a ticket, notify its controller, and take it out of its queue.

    Call with the queue's lock held. Returns False when a result existed already; then the new one
    is kept beside it and ignored. If a process dies in between, the queue contains a ticket whose
    result exists; `complete` takes it out.
    """
    paths = machine.job(ticket.job)
    make_directory(paths.directory)
    content = to_json(result.to_dict())
    if not write_exclusively(paths.result, content):
        if nonce_of(paths) == result.nonce:
            # The disk was full after the link of this result; the remaining steps follow now.
            return complete(machine, path, ticket)
        write_exclusively(paths.late_result(result.nonce), content)
        complete(machine, path, ticket)
        return False
    if ticket.controller is not None:
        deliver(machine, result, ticket.controller)
    move(path, paths.ticket)
    return True


def nonce_of(paths: JobPaths) -> str | None:
    """The nonce of the result that counts; None when there is no readable result."""
    try:
        return read_result(paths.result).nonce
    except (FileNotFoundError, DamagedFileError):
        return None


def complete(machine: MachinePaths, path: Path, ticket: Ticket) -> bool:
    """Finish what a dead process began: if the ticket has a result, take it out of the queue.

    The result is delivered to the controller, perhaps again. Returns whether there was a result.
    """
    paths = machine.job(ticket.job)
    if not is_there(paths.result):
        return False
    try:
        if ticket.controller is not None:
            deliver(machine, read_result(paths.result), ticket.controller)
    except DamagedFileError as error:
        _log.warning("%s", error.message)
        assert ticket.controller is not None
        # The result is empty after a power failure, for example. Without this delivery, the
        # controller would wait for ever.
        entry = Entry(path, ticket.job, ticket.attempt)
        _deliver_damage(machine, entry, ticket.controller, error.message)
    with contextlib.suppress(FileNotFoundError):
        move(path, paths.ticket)
    return True


def set_aside(machine: MachinePaths, queue: QueuePaths, entry: Entry, why: str) -> None:
    """Take an unreadable ticket out of the queue, keep it, and publish that it failed.

    Call with the queue's lock held. Only the unreadable file names its controller, so the result is
    delivered to every controller. Each one skips jobs that are not its own.
    """
    make_directory(queue.damaged)
    kept = queue.damaged_ticket(entry.path.name, new_nonce())
    result = unexecuted_result(machine, entry, "failed", f"{why} (set aside as {kept})")
    make_directory(machine.job(entry.job).directory)
    if write_exclusively(machine.job(entry.job).result, to_json(result.to_dict())):
        for controller in controller_names(machine):
            deliver(machine, result, controller)
    with contextlib.suppress(FileNotFoundError):
        move(entry.path, kept)
    _log.warning("job %d failed: %s", entry.job, result.detail)
