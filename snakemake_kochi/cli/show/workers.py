"""`kochi show workers`."""

from __future__ import annotations

import click

from snakemake_kochi.cli.options import json_option, machine_option
from snakemake_kochi.cli.output import coloured, local_time, print_json, print_table
from snakemake_kochi.place import find_place
from snakemake_kochi.queue import WorkerState, list_workers

_GONE = ("left", "lost")


@click.command("workers")
@machine_option
@click.option("-a", "--all", "all_workers", is_flag=True, help="Also those that are gone.")
@json_option
def command(machine: str | None, all_workers: bool, as_json: bool) -> None:
    """Workers that are there; -a: all that ever were."""
    workers = [
        worker
        for worker in list_workers(find_place(machine).machine_paths)
        if all_workers or worker.describe() not in _GONE
    ]
    if as_json:
        print_json([_to_dict(worker) for worker in workers])
        return
    print_table(
        ("ID", "State", "Node", "Queues", "Cores", "Jobs", "Started"),
        [
            (
                worker.worker,
                coloured(worker.describe()),
                worker.node.host,
                worker.queues,
                worker.capacity.cores,
                tuple(worker.running),
                local_time(worker.started),
            )
            for worker in workers
        ],
        "There are no workers. To start one, type: kochi work -q QUEUE -b",
    )


def _to_dict(worker: WorkerState) -> dict[str, object]:
    return {
        "worker": worker.worker,
        "state": worker.describe(),
        "node": worker.node.host,
        "pid": worker.process.pid,
        "queues": list(worker.queues),
        "cores": worker.capacity.cores,
        "jobs": list(worker.running),
        "started": worker.started,
        "updated": worker.updated,
    }
