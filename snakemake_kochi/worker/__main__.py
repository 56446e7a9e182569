"""`python -m snakemake_kochi.worker`: how other parts of the project start a worker."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import Root
from snakemake_kochi.queue import Kind
from snakemake_kochi.queue.heartbeat import heartbeat_interval
from snakemake_kochi.worker.settings import BETWEEN_JOBS
from snakemake_kochi.worker.start import run_worker


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and work; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m snakemake_kochi.worker", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="KOCHI_ROOT")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--queue", action="append", default=[], help="may be given several times")
    parser.add_argument("--cores", type=int, help="default: those this process may run on")
    parser.add_argument("--memory-mb", type=int, help="MiB; default: what this process may use")
    parser.add_argument("--most-memory-mb", type=int, help="MiB for jobs, if there is as much")
    parser.add_argument("--gpus", help="how many, or their names separated by commas")
    parser.add_argument("--walltime", type=float, metavar="SECONDS", help="how long it may be here")
    parser.add_argument(
        "--asked", type=float, metavar="SECONDS", help="for how long its allocation was asked for"
    )
    parser.add_argument(
        "--first", action="append", default=[], metavar="JSON", help="a kind of jobs to begin first"
    )
    parser.add_argument("--stay", action="store_true", help="wait when the queues are empty")
    parser.add_argument(
        "--idle-timeout", type=float, metavar="SECONDS", help="with --stay: how long without jobs"
    )
    parser.add_argument("--allocation", help="that of the scheduler in which this is")
    parser.add_argument("--worker", type=int, help="its number, when it was given one")
    parser.add_argument("--controller", help="claim only the tickets of this one")
    parser.add_argument("--parent", type=int, help="leave when this process ends")
    parser.add_argument("--echo", action="store_true", help="show the jobs' output")
    parser.add_argument("--idle-wait", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--between-jobs", type=float, default=BETWEEN_JOBS, metavar="SECONDS")
    parser.add_argument("--grace", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument(
        "--cancel-waiting", default="", metavar="COMMAND", help="for when the controller is dead"
    )
    parser.add_argument("--heartbeat", type=float, metavar="SECONDS")
    given = parser.parse_args(arguments)
    if given.cores is not None and given.cores < 1:
        parser.error("--cores: a number from 1 was expected")
    if given.memory_mb is not None and given.memory_mb < 1:
        parser.error("--memory-mb: a number of MiB from 1 was expected")
    try:
        root = Root(given.root.absolute())
        machine = root.machine(given.machine)
        # Who started this one has told of any doubts.
        root.secure(machine.directory)
        return run_worker(
            machine,
            given.queue,
            cores=given.cores,
            memory_mb=given.memory_mb,
            most_memory_mb=given.most_memory_mb,
            gpus=given.gpus,
            walltime=given.walltime,
            asked=given.asked,
            first=[Kind.from_dict(json.loads(kind)) for kind in given.first],
            stay=given.stay,
            idle_timeout=given.idle_timeout,
            allocation=given.allocation,
            echo=given.echo,
            parent=given.parent,
            worker=given.worker,
            controller=given.controller,
            idle_wait=given.idle_wait,
            between_jobs=given.between_jobs,
            grace=given.grace,
            cancel_waiting=shlex.split(given.cancel_waiting),
            heartbeat=given.heartbeat or heartbeat_interval(),
        )
    except KochiError as error:
        print(f"kochi worker: {error.message}", file=sys.stderr)
        if error.hint:
            print(error.hint, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
