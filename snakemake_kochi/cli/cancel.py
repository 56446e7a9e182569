"""`kochi cancel`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from snakemake_kochi.cli.options import (
    JOB,
    json_option,
    machine_option,
    quiet_option,
    yes_option,
)
from snakemake_kochi.cli.output import agreed, print_json, remark, say
from snakemake_kochi.cli.show.jobs import belongs_to
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.locks import read_lock_settings
from snakemake_kochi.queue import cancel_all, list_jobs

_SENTENCES = {
    "cancelled": "Job {} was cancelled.",
    "cancelling": "Job {} is being cancelled; its worker was told.",
    "ended": "Job {} had ended already.",
}


@click.command()
@machine_option
@click.option("-a", "--all", "all_jobs", is_flag=True, help="Cancel all jobs of this project.")
@yes_option
@quiet_option
@json_option
@click.argument("jobs", nargs=-1, type=JOB, metavar="JOB...")
def command(
    machine: str | None,
    all_jobs: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
    jobs: Sequence[int],
) -> int:
    """Cancel waiting and running jobs, with all their processes."""
    if bool(jobs) == all_jobs:
        raise click.UsageError("either numbers of jobs or -a was expected")
    location = find_location(machine)
    location.require_here()
    if read_lock_settings(location.machine_paths) is None:
        location.prepare_machine()
    else:
        # Whatever the configuration says by now: users cancel jobs in order to change it.
        location.secure(location.machine_paths.directory)
    if all_jobs:
        jobs = _jobs_of_project(location)
        if jobs and not agreed(f"Cancel {len(jobs)} jobs: {' '.join(map(str, jobs))}?", yes):
            return 1
        if not jobs and not as_json:
            say("This project has no jobs that wait or run.", quiet)
    outcomes = []
    failed = False
    found = cancel_all(location.machine_paths, jobs)
    for job in dict.fromkeys(jobs):
        outcome = found[job]
        if isinstance(outcome, Exception):
            # The other jobs are cancelled all the same.
            remark(f"kochi: job {job}: {outcome}")
            failed = True
            continue
        outcomes.append({"job": job, "outcome": outcome})
        if not as_json:
            say(_SENTENCES[outcome].format(job), quiet)
    if as_json:
        print_json(outcomes)
    return int(failed)


def _jobs_of_project(location: Location) -> list[int]:
    """The project's jobs, the waiting ones first: a worker with a cancelled job would start one."""
    project = location.require_project()
    views = list_jobs(location.machine_paths, ended=False, limit=sys.maxsize)
    own = [view for view in views if belongs_to(view, project)]
    return [view.job for view in sorted(own, key=lambda view: view.state != "waiting")]
