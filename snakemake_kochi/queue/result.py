"""The records of a ticket's attempts, and its result.

The file of an attempt that counts has the keys of `Attempt`, followed by those of `Result` that are
not among them: it is completed at the end of the attempt, and then becomes the result by a second
name. All other results have the keys of `Result` only.
"""

from __future__ import annotations

import contextlib
import signal as signals
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import (
    answered,
    is_there,
    parse_json,
    random_word,
    read_json,
    show_new_files,
)
from snakemake_kochi.paths import JobPaths
from snakemake_kochi.processes import Node, ProcessIdentity

VERSION = 3
Reason = Literal[
    "success", "failed", "signal", "out of memory", "timeout", "cancelled", "node failed", "lost"
]
# Keys of a result that earlier releases did not write.
_LATER = frozenset({"outputs", "runner", "cpu_seconds", "peak_memory_mb"})
# Seconds for which a filesystem may show a file without what its writer has added; the clocks of
# the nodes and of the file server may differ by minutes. Seconds between two looks.
SEEN_LATE = 10.0
_NEW = 3600.0
_LOOK_AGAIN = 0.1
# Ends of an attempt that cost the ticket nothing: the ticket goes back to its queue.
UncountedReason = Literal["drained", "out of time", "node failed", "lost"]


@dataclass(frozen=True)
class Attempt:
    """One execution of a ticket by one worker, written once, before the job's first instruction.

    `process` is the job's main process, which leads a session and a process group of its own.
    `runner` is the runner that executes it: "phase", "shell", "zygote" or "command".
    `skipped_runners` is the reason, for people, why a faster runner that was chosen for the ticket
    was not used.
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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: Path) -> Attempt:
        try:
            return cls(
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
            raise DamagedFileError(f"{where}: not an attempt ({error!r})") from error


# Reads a file of a job as a JSON object of this version or an older one: `read_json`, or
# `Packs.read_json` for a job that may have ended long ago.
Reader = Callable[[Path, int], dict[str, Any]]


def read_attempt(path: Path, read: Reader = read_json) -> Attempt:
    """Read the file of an attempt. Raises FileNotFoundError or DamagedFileError."""
    try:
        data = read(path, VERSION)
    except DamagedFileError:
        if read is not read_json or (beginning := _read_beginning(path)) is None:
            raise
        data = beginning
    return Attempt.from_dict(data, path)


def _read_beginning(path: Path) -> dict[str, Any] | None:
    """The complete lines of a file whose writer died, or is at work, while it completes the file.

    The keys of the attempt come first. They were there before, and are not written again.
    """
    lines = answered(path.read_bytes).splitlines()
    for count in range(len(lines) - 1, 1, -1):
        content = b"\n".join(lines[:count]).removesuffix(b",") + b"\n}"
        with contextlib.suppress(DamagedFileError):
            return parse_json(content, path, VERSION)
    return None


def find_attempt(paths: JobPaths, number: int, read: Reader = read_json) -> Attempt:
    """Read an attempt, also one that was given up. Raises FileNotFoundError or DamagedFileError.

    What gives an attempt up copies its record, and then removes its file.
    """
    try:
        return read_attempt(paths.attempt(number), read)
    except FileNotFoundError:
        ended = paths.ended(number)
        begun = read(ended, VERSION).get("begun")
        if begun is None:
            raise
        return Attempt.from_dict(begun, ended)


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

    @property
    def state(self) -> str:
        """The end in a word: "succeeded", "failed" or "cancelled"."""
        return {"success": "succeeded", "cancelled": "cancelled"}.get(self.reason, "failed")

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
        return {"version": VERSION, **vars(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: Path) -> Result:
        outputs = data.get("outputs", {})  # missing in version 1
        node = data.get("node")
        if isinstance(node, Mapping):
            data = {**data, "node": str(node.get("host", ""))}  # that of an attempt
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


def has_result(paths: JobPaths) -> bool:
    """Whether the directory of a job has its result, perhaps from another node, just now.

    Raises OSError when that is unknown.
    """
    show_new_files(paths.directory)
    return is_there(paths.result)


def read_result(path: Path, read: Reader = read_json) -> Result:
    """Read a result. Raises FileNotFoundError or DamagedFileError.

    If the file is new, and shows what an attempt was before its end, it is read again for some
    seconds: see `may_be_late`.
    """
    until = time.monotonic() + SEEN_LATE
    while True:
        try:
            return read_result_now(path, read)
        except DamagedFileError:
            if time.monotonic() >= until or not may_be_late(path):
                raise
        time.sleep(_LOOK_AGAIN)


def read_result_now(path: Path, read: Reader = read_json) -> Result:
    """Read a result as this node shows it now. Raises as `read_result`."""
    return Result.from_dict(read(path, VERSION), path)


def may_be_late(path: Path) -> bool:
    """Whether a damaged result may be one that this node shows as it was before its end.

    A client of GlusterFS that has read the file as that of an attempt does so for a second. The
    directory tells when the file got the name of a result, also where the file's own time is old.
    """
    try:
        age = time.time() - answered(path.parent.stat).st_mtime
        return age < _NEW and is_of_attempt(answered(path.read_bytes))
    except OSError:
        return False  # it is in a pack, for example


def is_of_attempt(content: bytes) -> bool:
    """Whether a file begins as that of an attempt does."""
    return b'\n "process": ' in content


@dataclass(frozen=True)
class EndedAttempt:
    """How an attempt ended that was not the last; its ticket went back to the queue.

    `reason` is "drained" (its worker was stopped), "out of time" (its worker reached the end of its
    walltime, and the attempt had had most of it), "node failed" (its node could not execute it), or
    "lost" (its worker died). `nonce` is None when the attempt never began. `begun` is the content
    of the file of an attempt that began.
    """

    job: int
    attempt: int
    nonce: str | None
    worker: int
    node: str
    reason: UncountedReason
    ended: str
    detail: str = ""
    begun: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def read_ended_attempt(path: Path, read: Reader = read_json) -> EndedAttempt:
    """Read the end of an attempt. Raises FileNotFoundError or DamagedFileError."""
    data = read(path, VERSION)
    try:
        names = EndedAttempt.__dataclass_fields__.keys() - {"begun"}  # missing in version 2
        ended = EndedAttempt(**{key: data[key] for key in names}, begun=data.get("begun"))
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
    return random_word(8)
