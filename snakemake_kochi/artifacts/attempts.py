"""Which attempt of a job counts: of two with a result of the same point, the later one.

A worker that hangs is presumed dead, and its job begins again elsewhere. If the worker wakes up, or
if only the worker hung and not its job, two attempts finish. The name of the
job's ticket says which attempt is the present one (docs/protocol.md).

A job may make many results, by a Snakemake of its own, and its next attempt makes only the missing
ones. So a result of an attempt that was given up counts until a later attempt has made it again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from snakemake_kochi.base import files
from snakemake_kochi.errors import PhaseError
from snakemake_kochi.paths import MachinePaths, ProjectPaths
from snakemake_kochi.tickets.history import View, find, key_of, last_line
from snakemake_kochi.tickets.moving import is_listed, listing
from snakemake_kochi.tickets.names import Layout, Name

_POINT = ("experiment", "batch", "name", "parameters", "duplicate")
_REASONS = {"memory": "out of memory", "node": "node failed"}
_MOST_EARLIER = 20


def is_given_up(paths: ProjectPaths, record: Mapping[str, Any]) -> bool:
    """Whether others have the ticket of the attempt of a record, or its end already."""
    with suppress(OSError):
        if (held := _held(paths, record)) is not None and held.attempt == int(record["attempt"]):
            return False
        if (view := _view(paths, record)) is not None:
            return view.name.attempt > int(record["attempt"]) or view.state == "lost"
    return False


def earlier_attempts(
    machine: MachinePaths, queue: str, job: str, attempt: str
) -> list[dict[str, Any]]:
    """The attempts of a running job that ended without a result; dead workers wrote nothing."""
    layout, present = machine.layout, int(attempt or 1)
    if not queue or present == 1:
        return []
    lines: dict[int, dict[str, Any]] = {}
    with suppress(OSError):
        running = layout.queue(queue).running
        for name in Name.parse_all(listing(running)):
            if name.key == key_of(job):
                found = last_line(files.read(f"{running}/{name}"), name).get("earlier", ())
                lines = {line["attempt"]: line for line in found}
    return [
        _earlier(number, lines.get(number))
        for number in range(max(1, present - _MOST_EARLIER), present)
    ]


def _earlier(number: int, line: Mapping[str, Any] | None) -> dict[str, Any]:
    details = {} if line is None else line["details"] or {}
    reason = details.get("reason") or "lost"
    return {
        "attempt": str(number),
        "nonce": details.get("nonce", ""),
        "worker": "" if line is None else line["worker"],
        "node": details.get("node", ""),
        "started": details.get("started"),
        "ended": details.get("ended") or datetime.now(UTC).isoformat(),
        "outcome": "lost" if reason == "lost" else "failed",
        "reason": ": ".join(filter(None, (reason, details.get("detail")))),
    }


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
    if not is_given_up(paths, record):
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
    """How the attempt of a record has ended; None if it has not, or if that is not known now."""
    with suppress(OSError):
        if (view := _view(paths, record)) is None:
            return None
        number, line, state = int(record["attempt"]), view.line, view.name.state
        if view.name.attempt > number:
            earlier = {line["attempt"]: line for line in line.get("earlier", ())}
            line, state = earlier.get(number, {}), "lost"
        if not state:
            return None
        details = line.get("details") or {}
        if details.get("nonce", record["nonce"]) != record["nonce"]:
            return None  # another job has its number: KOCHI_ROOT was emptied
        return {
            "reason": details.get("reason") or _REASONS.get(state, state),
            "detail": details.get("detail"),
            "signal": details.get("signal"),
            "ended": details.get("ended") or datetime.now(UTC).isoformat(),
        }
    return None


def is_cancelled(paths: ProjectPaths, record: Mapping[str, Any]) -> bool:
    """Whether somebody has cancelled the job of a record."""
    with suppress(OSError):
        held = _held(paths, record)
        return held is not None and is_listed(
            _layout(paths, record).worker(held.worker).cancel(held)
        )
    return False


def _layout(paths: ProjectPaths, record: Mapping[str, Any]) -> Layout:
    return paths.machine(record["machine"]).layout


def _held(paths: ProjectPaths, record: Mapping[str, Any]) -> Name | None:
    """The ticket of a running job. Raises OSError."""
    with suppress(KeyError, TypeError, ValueError):
        if record["queue"]:
            running = _layout(paths, record).queue(record["queue"]).running
            key = key_of(record["job"])
            return next((n for n in Name.parse_all(listing(running)) if n.key == key), None)
    return None


def _view(paths: ProjectPaths, record: Mapping[str, Any]) -> View | None:
    """None for a run without a worker. Raises OSError."""
    with suppress(KeyError, TypeError, ValueError):
        if record["queue"] and int(record["attempt"]) >= 1:
            return find(_layout(paths, record), *key_of(record["job"]))
    return None
