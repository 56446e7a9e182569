"""A job as `kochi show jobs` and `kochi show job` tell it."""

from __future__ import annotations

from snakemake_kochi.queue import AttemptView, JobView


def state_of(view: JobView) -> str:
    """Where a job is, or how it ended."""
    if view.result is not None:
        return view.result.describe()
    return "cancelling" if view.cancelling else view.state


def to_dict(view: JobView) -> dict[str, object]:
    """For programs; a damaged ticket leaves name, queue, machine and submitted at None."""
    ticket, result = view.ticket, view.result
    return {
        "job": view.job,
        "name": ticket.name if ticket else None,
        "queue": ticket.queue if ticket else None,
        "machine": ticket.machine if ticket else None,
        "state": "cancelling" if view.cancelling and result is None else view.state,
        "attempt": view.attempt,
        "worker": view.worker,
        "node": result.node if result else None,
        "submitted": ticket.submitted if ticket else None,
        "started": view.started,
        "ended": result.ended if result else None,
        "reason": result.reason if result else None,
        "exit_status": result.exit_status if result else None,
        "signal": result.signal if result else None,
        "detail": result.detail if result else None,
        "command": list(ticket.command) if ticket else None,
        "directory": ticket.directory if ticket else None,
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
        "passed_over": attempt.passed_over,
        "counts": attempt.counts,
    }
