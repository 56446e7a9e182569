"""A job as `kochi show jobs` and `kochi show job` tell it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from humanfriendly.text import pluralize

from snakemake_kochi.queue import AttemptView, JobView, Resources, seconds_since

# Labels of a ticket that tell jobs of one name apart, the most telling one first.
_TELLING = ("parameters", "command", "wildcards")


def state_name(view: JobView) -> str:
    """Where a job is, or how it ended, in a word: "waiting", "running", "cancelling", "succeeded",
    "failed" or "cancelled"."""
    if view.result is None:
        return "cancelling" if view.cancelling else view.state
    return {"success": "succeeded", "cancelled": "cancelled"}.get(view.result.reason, "failed")


def state_of(view: JobView) -> str:
    """That word, and what else is known: "failed: exit status 1"."""
    name = state_name(view)
    said = name if view.result is None else view.result.describe()
    return said if said.startswith(name) else f"{name}: {said}"


def what_runs(view: JobView) -> str:
    """A job's parameters, command or wildcards; "" where there is nothing of these."""
    labels = view.ticket.labels if view.ticket else {}
    return next((labels[name] for name in _TELLING if labels.get(name)), "")


def what_it_takes(resources: Resources) -> str:
    """Of its worker, for people: "the whole worker", "2 cores, 1024 MiB"."""
    if resources.exclusive:
        return "the whole worker"
    said = [pluralize(resources.cores, "core")]
    if resources.memory_mb:
        said.append(f"{resources.memory_mb} MiB")
    if resources.gpus:
        said.append(pluralize(resources.gpus, "GPU"))
    return ", ".join(said)


def running_seconds(view: JobView) -> float | None:
    """For how long it ran, or has been running; None before it started."""
    if view.started is None or view.result is None:
        return seconds_since(view.started)
    try:
        began, ended = map(datetime.fromisoformat, (view.started, view.result.ended))
    except ValueError:
        return None
    return (ended - began).total_seconds()


def to_dict(view: JobView) -> dict[str, object]:
    """For programs; a damaged ticket leaves name, queue, machine and submitted at None."""
    ticket, result = view.ticket, view.result
    return {
        "job": view.job,
        "name": ticket.name if ticket else None,
        "queue": ticket.queue if ticket else None,
        "machine": ticket.machine if ticket else None,
        "state": state_name(view),
        "attempt": view.attempt,
        "worker": view.worker,
        "node": result.node if result else None,
        "submitted": ticket.submitted if ticket else None,
        "started": view.started,
        "ended": result.ended if result else None,
        "seconds": running_seconds(view),
        "reason": result.reason if result else None,
        "exit_status": result.exit_status if result else None,
        "signal": result.signal if result else None,
        "detail": result.detail if result else None,
        "command": list(ticket.command) if ticket else None,
        "directory": ticket.directory if ticket else None,
        "resources": asdict(ticket.resources) if ticket else None,
        "labels": dict(ticket.labels) if ticket else {},
        "log": str(view.log),
    }


def attempt_to_dict(attempt: AttemptView) -> dict[str, object]:
    """For programs; `counts` is false for one that cost the job nothing, or came too late."""
    return {
        "attempt": attempt.attempt,
        "worker": attempt.worker,
        "node": attempt.node,
        "started": attempt.started,
        "ended": attempt.ended,
        "seconds": attempt.seconds,
        "ending": attempt.ending,
        "runner": attempt.runner,
        "skipped_runners": attempt.skipped_runners,
        "counts": attempt.counts,
    }
