"""`kochi show jobs` and `kochi show job`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import click
from humanfriendly.text import pluralize

from snakemake_kochi.cli.options import COUNT, JOB, json_option, machine_option
from snakemake_kochi.cli.output import (
    clock_duration,
    coloured,
    local_time,
    print_json,
    print_pairs,
    print_table,
    readable,
    remark,
    shown,
)
from snakemake_kochi.errors import shortened
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.project.recipes import Project
from snakemake_kochi.quantities import seconds_since
from snakemake_kochi.queue.views import (
    Attempt,
    JobFilter,
    JobView,
    find_job,
    list_jobs,
    reasons,
    state_name,
    state_of,
)
from snakemake_kochi.tickets.ticket import Resources

_LIMIT = 30
_WIDTH = 48  # the width of the column that distinguishes jobs of one name


@click.command("jobs")
@machine_option
@click.option(
    "-t", "--terminated", "--show-terminated", is_flag=True, help="Also list jobs that ended."
)
@click.option(
    "--failed", is_flag=True, help="Only list jobs that failed; cancelled jobs are left out."
)
@click.option(
    *("-l", "--limit"),
    type=COUNT,
    help=f"How many jobs to list, the newest first; by default {_LIMIT}, and with -a all.",
)
@click.option("-a", "--all", "all_projects", is_flag=True, help="List the jobs of all projects.")
@click.option(
    *("-q", "--queue", "queues"),
    metavar="QUEUE",
    multiple=True,
    help="Only list jobs of this queue. May be given several times.",
)
@click.option(
    *("-n", "--name", "names"),
    metavar="NAME",
    multiple=True,
    help="Only list jobs of this name. May be given several times.",
)
@json_option
def jobs_command(
    machine: str | None,
    terminated: bool,
    failed: bool,
    limit: int | None,
    all_projects: bool,
    queues: tuple[str, ...],
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the waiting and running jobs of this project; outside of a project, of all projects."""
    location = find_location(machine)
    for queue in queues:
        # Refused if it is not a valid queue name: it is mistyped.
        location.machine_paths.queue(queue)
    count = limit or (sys.maxsize - 1 if all_projects else _LIMIT)

    of = None if all_projects or location.project is None else location.project.directory
    wanted = JobFilter(names, queues, ("failed",) if failed else (), of)
    # One more job, to know whether there are more.
    found = list_jobs(location.machine_paths, terminated or failed, count + 1, wanted)
    views = found[:count]
    if as_json:
        print_json([to_dict(view) for view in views])
        return
    print_table(
        (
            *("ID", "Name", "What it runs", "Queue", "State", "Worker"),
            *("Submitted", "Started", "Running Time"),
        ),
        [_row(view) for view in views],
        _nothing(location, terminated, failed, all_projects),
    )
    if len(found) > count:
        remark(f"These are the newest {count}; to see more, add: -l {10 * count}")


def _row(view: JobView) -> tuple[object, ...]:
    ticket = view.ticket
    return (
        view.job,
        ticket.name if ticket else "(damaged)",
        shortened(shown(what_runs(view)), _WIDTH),
        ticket.queue if ticket else None,
        coloured(state_of(view)),
        view.worker,
        local_time(ticket.submitted if ticket else None),
        local_time(view.started),
        clock_duration(running_seconds(view), digits=3),
    )


def _nothing(location: Location, terminated: bool, failed: bool, all_projects: bool) -> str:
    kind = "failed jobs" if failed else "jobs" if terminated else "waiting or running jobs"
    is_of_all = all_projects or location.project is None
    text = f"{'There are' if is_of_all else 'This project has'} no {kind}."
    hint = "" if failed or terminated else " To list jobs that ended, type: kochi show jobs -t"
    return text + hint


@click.command("job")
@machine_option
@json_option
@click.argument("job", type=JOB)
def job_command(machine: str | None, as_json: bool, job: int) -> None:
    """Show all about one job: why it waits, if it does, and how its attempts ended."""
    location = find_location(machine)
    paths = location.machine_paths
    view = find_job(paths, job)
    if as_json:
        tried = [attempt_to_dict(attempt) for attempt in view.attempts]
        why = reasons(paths, view, location.to_start_worker)
        print_json({**to_dict(view), "why": why, "attempts": tried})
    else:
        print_pairs(_pairs(location, view))


def _pairs(location: Location, view: JobView) -> dict[str, object]:
    machine = location.machine_paths
    ticket, result = view.ticket, view.result
    pairs: dict[str, object] = {"ID": view.job}
    if ticket is None:
        pairs["Name"] = "(the ticket is damaged)"
    else:
        pairs |= {"Name": ticket.name, "Queue": ticket.queue, "Machine": ticket.machine}
    pairs["State"] = coloured(state_of(view))
    if result is None:
        pairs[view.state.capitalize()] = "; ".join(reasons(machine, view, location.to_start_worker))
    pairs |= {"Attempt": view.attempt, "Worker": view.worker}
    pairs |= _attempts(view.attempts)
    if result is not None:
        pairs |= {"Node": result.node, "Exit status": result.exit_status}
    if ticket is not None:
        pairs["Submitted"] = local_time(ticket.submitted)
    pairs["Started"] = local_time(view.started)
    if result is not None:
        pairs["Ended"] = local_time(result.ended)
    pairs["Running time"] = clock_duration(running_seconds(view), digits=3)
    if ticket is not None:
        pairs |= {readable(name): value for name, value in ticket.labels.items()}
        pairs["Takes"] = what_it_takes(ticket.resources)
    if result is not None and result.peak_memory_mb is not None:
        pairs["Used"] = f"{result.cpu_seconds} s of CPU time, {result.peak_memory_mb} MiB at most"
    if ticket is not None:
        pairs["Directory"] = ticket.directory
        pairs["Executed"] = shlex.join(ticket.command)
    pairs["Log"] = view.log
    if result is not None and not view.log.exists():
        pairs["Log"] = f"is folded; to see it, type: kochi show log job {view.job}"
    return {key: value for key, value in pairs.items() if value not in (None, "")}


def _attempts(tried: Sequence[Attempt]) -> dict[str, object]:
    """One line for each attempt: its worker, its duration, and its end."""
    lines: dict[str, object] = {}
    for attempt in tried:
        who = f"worker {attempt.worker} on {attempt.node}"
        how = f"runner {attempt.runner}" if attempt.runner else ""
        how += f" ({attempt.skipped_runners})" if attempt.skipped_runners else ""
        parts = (who, clock_duration(attempt.seconds), how, attempt.ending or "running")
        key = f"Attempt {attempt.attempt}"
        # An attempt that was presumed dead, and came to an end all the same, has two.
        lines[f"{key} (late)" if key in lines else key] = ", ".join(filter(None, parts))
    return lines


# Labels of a ticket that distinguish jobs of one name, the most informative one first.
_TELLING = ("parameters", "command", "wildcards")


def what_runs(view: JobView) -> str:
    """A job's parameters, command or wildcards; "" without any of these."""
    labels = view.ticket.labels if view.ticket else {}
    return next((labels[name] for name in _TELLING if labels.get(name)), "")


def what_it_takes(resources: Resources) -> str:
    """The job's resources on its worker, for people: "the whole worker", "2 cores, 1024 MiB"."""
    if resources.exclusive:
        several = f", {resources.nodes} nodes" if resources.nodes > 1 else ""
        return f"the whole worker{several}"
    said = [pluralize(resources.cores, "core")]
    if resources.memory_mb:
        said.append(f"{resources.memory_mb} MiB")
    if resources.gpus:
        said.append(pluralize(resources.gpus, "GPU"))
    return ", ".join(said)


def running_seconds(view: JobView) -> float | None:
    """The seconds for which it ran, or has been running; None before it started."""
    ended = None if view.result is None else view.result.ended
    if view.started is None or ended is None:
        return seconds_since(view.started)
    try:
        began, end = map(datetime.fromisoformat, (view.started, ended))
    except ValueError:
        return None
    return (end - began).total_seconds()


def to_dict(view: JobView) -> dict[str, object]:
    """A job for programs; a damaged ticket leaves name, queue, machine and submitted at None."""
    ticket, result = view.ticket, view.result
    return {
        "job": view.job,
        "name": ticket.name if ticket else None,
        "queue": ticket.queue if ticket else None,
        "machine": ticket.machine if ticket else None,
        "state": state_name(view),
        "attempt": view.attempt,
        "worker": view.worker,
        "node": view.node,
        "submitted": ticket.submitted if ticket else None,
        "started": view.started,
        "ended": result.ended if result else None,
        "seconds": running_seconds(view),
        "reason": result.reason if result else None,
        "exit_status": result.exit_status if result else None,
        "signal": result.signal if result else None,
        "detail": result.detail if result else None,
        "cpu_seconds": result.cpu_seconds if result else None,
        "peak_memory_mb": result.peak_memory_mb if result else None,
        "command": list(ticket.command) if ticket else None,
        "directory": ticket.directory if ticket else None,
        "resources": asdict(ticket.resources) if ticket else None,
        "labels": dict(ticket.labels) if ticket else {},
        "log": str(view.log),
    }


def attempt_to_dict(attempt: Attempt) -> dict[str, object]:
    """An attempt for programs.

    `counts` is false for an attempt that cost the job nothing, or came too late. `peak_memory_mb`
    is that of its largest process, in MiB.
    """
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
        "cpu_seconds": attempt.cpu_seconds,
        "peak_memory_mb": attempt.peak_memory_mb,
        "counts": attempt.counts,
    }


def belongs_to(view: JobView, project: Project) -> bool:
    """Whether a job belongs to a project: by its label, or by its working directory.

    A job whose ticket is damaged belongs to no project.
    """
    if view.ticket is None:
        return False
    wanted = JobFilter(project=project.directory)
    return wanted.accepts(view)
