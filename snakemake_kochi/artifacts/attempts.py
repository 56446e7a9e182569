"""Which attempt of a job counts: of two with a result of the same point, the later one.

A worker that hangs is presumed dead, and its job begins again elsewhere. If the worker wakes up, or
if only the worker hung and not its job, two attempts finish. The queue's `ended-<n>.json`
(docs/queue.md) names the attempt that was given up before the next one began.

A job may make many results, by a Snakemake of its own, and its next attempt makes only the missing
ones. So a result of an attempt that was given up counts until a later attempt has made it again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, PhaseError
from snakemake_kochi.files import is_there, read_json
from snakemake_kochi.next import IS_NEXT
from snakemake_kochi.next import attempts as tickets
from snakemake_kochi.packs import Packs
from snakemake_kochi.paths import JobPaths, MachinePaths, ProjectPaths

_POINT = ("experiment", "batch", "name", "parameters", "duplicate")
_MOST_EARLIER = 20


def is_given_up(paths: ProjectPaths, record: Mapping[str, Any], job_goes_on: bool = False) -> bool:
    """Whether the attempt of a record was given up, so that a later one may count.

    If that is not known now, the record counts; it is removed when the later one's record comes.
    """
    if IS_NEXT:
        return tickets.is_given_up(paths, record)
    if (found := _job(paths, record)) is None:
        return False
    job, packs = found
    try:
        file, own = (of(int(record["attempt"])) for of in (job.ended, job.attempt))
        # A job that goes on has its own files in its directory; packs are not asked for each run.
        ended = read_json(file) if job_goes_on and is_there(own) else packs.read_json(file)
    except (OSError, DamagedFileError):
        return False
    # Numbers are reused after KOCHI_ROOT was emptied; nonces are not.
    return bool(record["nonce"]) and ended.get("nonce") == record["nonce"]


def earlier_nonces(paths: ProjectPaths, record: Mapping[str, Any]) -> set[str]:
    """The nonces of the attempts of the same job that were given up before this one began."""
    assert not IS_NEXT  # see `replaced.superseded_records`
    if (found := _job(paths, record)) is None:
        return set()
    nonces, (job, packs) = set(), found
    for number in range(1, int(record["attempt"])):
        try:
            nonces.add(packs.read_json(job.ended(number)).get("nonce"))
        except (OSError, DamagedFileError):
            continue
    return {nonce for nonce in nonces if isinstance(nonce, str) and nonce}


def earlier_attempts(
    machine: MachinePaths, queue: str, job: str, attempt: str
) -> list[dict[str, Any]]:
    """The attempts of a job that ended without a result, each as a record has them.

    Only the latest of many. An attempt whose file cannot be read now is left out. `attempt` is the
    present one; without a `queue` there is no worker, and no other attempt.
    """
    if IS_NEXT:
        return tickets.earlier_attempts(machine, queue, job, attempt)
    try:
        present, paths = int(attempt), machine.job(int(job))
    except ValueError:
        return []
    numbers = range(max(1, present - _MOST_EARLIER), present) if queue else ()
    found = []
    for number in numbers:
        with suppress(OSError, DamagedFileError, KeyError):
            ended = read_json(paths.ended(number))
            found.append(
                {
                    "attempt": str(number),
                    "nonce": ended["nonce"] or "",
                    "worker": str(ended["worker"]),
                    "node": str(ended["node"]),
                    "started": _start(ended, paths.attempt(number)),
                    "ended": str(ended["ended"]),
                    "outcome": "lost" if ended["reason"] == "lost" else "failed",
                    "reason": ": ".join(filter(None, (ended["reason"], ended.get("detail")))),
                }
            )
    return found


def _start(ended: Mapping[str, Any], attempt: Path) -> str | None:
    """When an attempt began that was given up; None if it never began."""
    if begun := ended.get("begun"):
        return str(begun["started"])
    # An earlier release kept the file of the attempt.
    with suppress(OSError, DamagedFileError, KeyError):
        return str(read_json(attempt)["started"])
    return None


def is_same_point(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two records are of the same point of an experiment."""
    return all(one.get(key) == other.get(key) for key in _POINT)


def is_redone(record: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Whether another record is of a later attempt of the same job, and of the same point."""
    try:
        is_later = int(later["attempt"]) > int(record["attempt"])
        is_of_job = all(later[key] == record[key] for key in ("machine", "queue", "job"))
    except (KeyError, TypeError, ValueError):
        return False
    return is_later and is_of_job and is_same_point(record, later)


def stop_if_given_up(paths: ProjectPaths, record: Mapping[str, Any]) -> None:
    """End this process, and all of its job, if its attempt was given up.

    Raises PhaseError where it is not a process of that job alone.
    """
    if not is_given_up(paths, record, job_goes_on=True):
        return
    message = (
        f"attempt {record['attempt']} of job {record['job']} was given up, and another worker has "
        "the job now: this attempt keeps no result"
    )
    if os.getpgid(0) == os.getsid(0):
        # Not by an exit status: a Snakemake around this would remove the outputs of a failed job,
        # which belong to the attempt that counts.
        print(f"kochi: {message}", file=sys.stderr, flush=True)
        os.killpg(0, signal.SIGKILL)
    raise PhaseError(message)


def ending(paths: ProjectPaths, record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How the attempt of a record has ended, as the queue says it: `ended-<n>.json` or a result.

    None if it has not, if it had no worker, or if that is not known now.
    """
    if IS_NEXT:
        return tickets.ending(paths, record)
    if (found := _job(paths, record)) is None:
        return None
    job, packs = found
    for file in (job.ended(int(record["attempt"])), job.result):
        with suppress(OSError, DamagedFileError):
            ended = packs.read_json(file)
            if record["nonce"] and ended.get("nonce") == record["nonce"]:
                return ended
    return None


def is_cancelled(paths: ProjectPaths, record: Mapping[str, Any]) -> bool:
    """Whether somebody has cancelled the job of a record."""
    if IS_NEXT:
        return tickets.is_cancelled(paths, record)
    found = _job(paths, record)
    with suppress(OSError):
        return found is not None and is_there(found[0].cancel)
    return False


def _job(paths: ProjectPaths, record: Mapping[str, Any]) -> tuple[JobPaths, Packs] | None:
    """The job of a record in the queue, which may have ended long ago; None for a run without a
    worker."""
    try:
        if not record["queue"] or int(record["attempt"]) < 1:
            return None
        machine = paths.machine(record["machine"])
        return machine.job(int(record["job"])), Packs(machine)
    except (KeyError, TypeError, ValueError):
        return None
