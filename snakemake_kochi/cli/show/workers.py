"""`kochi show workers` and `kochi show queues`."""

from __future__ import annotations

import click
import humanfriendly

from snakemake_kochi.cli.options import json_option, machine_option
from snakemake_kochi.cli.output import coloured, print_json, print_table, short_duration
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import find_location
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.quantities import seconds_since
from snakemake_kochi.queue.views import (
    WorkerView,
    find_job,
    list_queues,
    list_workers,
    seconds_left,
)
from snakemake_kochi.tickets.history import JobId

_GONE = ("left", "lost")
# Seconds without a heartbeat after which nobody expects another one: while its run may watch it,
# and afterwards. The clock of the file server may differ by minutes.


@click.command("workers")
@machine_option
@click.option(
    *("-a", "--all", "all_workers"), is_flag=True, help="Also list workers that are gone, and why."
)
@click.option(
    *("-q", "--queue", "queues"),
    metavar="QUEUE",
    multiple=True,
    help="Only list workers that serve this queue. May be given several times.",
)
@json_option
def workers_command(
    machine: str | None, all_workers: bool, queues: tuple[str, ...], as_json: bool
) -> None:
    """List workers and what they do; -a: also those that are gone."""
    location = find_location(machine)
    paths = location.machine_paths
    for queue in queues:
        # Refused if it is not a valid queue name: it is mistyped.
        paths.queue(queue)
    workers = [
        worker
        for worker in list_workers(paths)
        if (all_workers or worker.state not in _GONE)
        and (not queues or {*queues} & {*worker.queues})
    ]
    if as_json:
        print_json([_to_dict(worker) for worker in workers])
        return
    # A narrow terminal may cut off the last columns.
    headers = ["ID", "State", "Node", "Queues", "Cores", "Memory", "GPUs", "Left"]
    print_table(
        (*headers, "Does" if not all_workers else "Does, or why it went"),
        [_row(paths, worker) for worker in workers],
        f"There are no workers{' of that queue' if queues else ''}. "
        f"To start one, type: {location.to_start_worker(queues[0] if queues else 'QUEUE')}",
    )


def _row(machine: MachinePaths, worker: WorkerView) -> tuple[object, ...]:
    is_gone = worker.state in _GONE
    memory = worker.capacity.memory_mb * 2**20
    return (
        worker.worker,
        coloured(worker.state),
        worker.node.host,
        worker.queues,
        worker.capacity.cores,
        humanfriendly.format_size(memory, binary=True) if memory else None,
        worker.capacity.gpus or None,
        None if is_gone else short_duration(seconds_left(worker)),
        worker.reason if is_gone else _doing(machine, worker),
    )


def _doing(machine: MachinePaths, worker: WorkerView) -> str:
    """The current jobs as "job 17 (fib) for 3 min, job 18 (fib) for 2 min", or "idle"."""
    jobs = [
        f"job {job}{_name_of(machine, job)}{_for(since)}"
        for job, since in sorted(worker.running.items(), key=lambda item: item[1] or "")
    ]
    said = ", ".join(jobs) or "idle"
    if worker.waits:
        return f"{worker.waits}; {worker.reason}" if worker.reason else worker.waits
    return f"{said}; {worker.reason}" if worker.reason else said


def _name_of(machine: MachinePaths, job: JobId) -> str:
    try:
        ticket = find_job(machine, job).ticket
    except KochiError:
        return ""  # its file is damaged; the table is about the worker
    return f" ({ticket.name})" if ticket else ""


def _for(time: str | None) -> str:
    seconds = seconds_since(time)
    return "" if seconds is None else f" for {short_duration(max(0.0, seconds))}"


def _to_dict(worker: WorkerView) -> dict[str, object]:
    return {
        "worker": worker.worker,
        "state": worker.state,
        "node": worker.node.host,
        "pid": worker.process.pid,
        "queues": list(worker.queues),
        "controller": worker.controller,
        "cores": worker.capacity.cores,
        "memory_mb": worker.capacity.memory_mb,
        "gpus": worker.capacity.gpus,
        "jobs": list(worker.running),
        "running": {str(job): since for job, since in worker.running.items()},
        "waits": worker.waits,
        "until": worker.until,
        "reason": worker.reason,
        "started": worker.started,
        "updated": worker.updated,
    }


@click.command("queues")
@machine_option
@json_option
def queues_command(machine: str | None, as_json: bool) -> None:
    """List all queues: their waiting and running jobs, and the workers that serve them."""
    location = find_location(machine)
    views = list_queues(location.machine_paths)
    if as_json:
        print_json(
            [
                {
                    "queue": view.name,
                    "waiting": view.waiting,
                    "running": view.running,
                    "workers": list(view.workers),
                }
                for view in views
            ]
        )
        return
    print_table(
        ("Queue", "Waiting", "Running", "Workers"),
        [(view.name, view.waiting, view.running, view.workers) for view in views],
        f"There are no queues. To make one, type: {location.to_start_worker('NAME')}",
    )
