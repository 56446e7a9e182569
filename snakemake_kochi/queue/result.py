"""What is written about an execution: the attempt when it starts, the result when it ended."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import read_json
from snakemake_kochi.queue.processes import Node, ProcessIdentity

VERSION = 1
Reason = Literal["success", "failed", "signal", "cancelled", "lost"]


@dataclass(frozen=True)
class Attempt:
    """One execution of a ticket by one worker, written once, before the job's first instruction.

    `process` is the job's main process: leader of a session and a process group of its own.
    """

    job: int
    attempt: int
    nonce: str
    worker: int
    node: Node
    process: ProcessIdentity
    started: str

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def read_attempt(path: Path) -> Attempt:
    """Raises FileNotFoundError, or DamagedFileError."""
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
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path}: not an attempt ({error!r})") from error


@dataclass(frozen=True)
class Result:
    """How a ticket ended.

    `reason`: "success", "failed" (with an exit status, or a `detail` when nothing could be
    executed), "signal" (killed by the signal of that number), "cancelled", or "lost" (its workers
    died). `worker` and `node` are None and "" for a ticket that no worker had. `started` and
    `ended` are ISO 8601 with microseconds, `log` is the path of the job's output.
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

    @property
    def ok(self) -> bool:
        return self.reason == "success"

    def describe(self) -> str:
        """In a few words for people: "succeeded", "exit status 1", "killed by SIGKILL"."""
        text = {
            "success": "succeeded",
            "failed": "failed" if self.exit_status is None else f"exit status {self.exit_status}",
            "signal": f"killed by {_signal_name(self.signal)}",
            "cancelled": "cancelled",
            "lost": "lost",
        }[self.reason]
        return f"{text}: {self.detail}" if self.detail else text

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: Path) -> Result:
        try:
            result = cls(**{key: data[key] for key in cls.__dataclass_fields__})
        except KeyError as error:
            raise DamagedFileError(f"{where}: key {error} is missing") from error
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
    """Raises FileNotFoundError, or DamagedFileError."""
    return Result.from_dict(read_json(path, VERSION), path)


def _signal_name(number: int | None) -> str:
    try:
        return signals.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"
