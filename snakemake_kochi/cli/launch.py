"""`kochi launch`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from snakemake_kochi.backoff import Backoff
from snakemake_kochi.cli.options import json_option, machine_option
from snakemake_kochi.cli.output import copy_from, print_json, print_pairs, readable, remark, say
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import USE_VARIABLE

if TYPE_CHECKING:
    from snakemake_kochi.detached.launches import Found
    from snakemake_kochi.location import Location

_LOOK = 0.1  # seconds between two looks at the output
_CHECK = 0.5  # seconds between two looks at the state of the run
_QUESTION = 10.0  # the same, if the scheduler has to be asked
_TIME_UP = (
    "its time limit ended it. Its jobs in other allocations go on; to adopt them, type the same "
    "kochi launch again"
)
_INTERRUPTED = 128 + signal.SIGINT  # the exit status of shells after an end by a signal
# The options by which the user says where or how jobs are run.
_SAYS_WHERE = {"--kochi-where", "--profile", "--workflow-profile", "--executor", "-e"}
_SAYS_HOW = ("--profile", "--executor", "-e", "--workflow-profile")


@click.command(context_settings={"allow_interspersed_args": False})
@machine_option
@click.option("--follow", "-f", is_flag=True, help="Show the run's output until it ends.")
@click.option(
    "--stop", is_flag=True, help="Stop the run as Ctrl-C would, and wait; a second --stop kills it."
)
@click.option(
    "--status", is_flag=True, help="Show the run's state, its steps done and failed, and an ETA."
)
@click.option("--name", metavar="NAME", default="", help="A name for the run.")
@click.option(
    "--in-allocation/--on-login-node",
    default=None,
    help="Run it in a one-core job of the machine's scheduler, or on this host; by default where "
    "the machine has its controllers.",
)
@click.option(
    *("-t", "--time-limit", "limit"),
    metavar="LIMIT",
    help="The time limit of that job, as 30m, 2h or for sbatch --time; by default the partition's. "
    "Jobs in other allocations go on after it.",
)
@click.option("--run", "identity", hidden=True, help="Not the last run here, but this one.")
@click.option("--from", "position", type=int, default=0, hidden=True, help="Skip output.")
@json_option
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- SNAKEMAKE ARGUMENTS...]"
)
def command(
    machine: str | None,
    follow: bool,
    stop: bool,
    status: bool,
    name: str,
    in_allocation: bool | None,
    limit: str | None,
    identity: str | None,
    position: int,
    as_json: bool,
    arguments: tuple[str, ...],
) -> int:
    """Run `snakemake ARGUMENTS` in this directory, and keep it running after logout.

    If the arguments name no profile and no executor, the profile is 'cluster' on a machine with a
    scheduler or an alloc_script, and 'local' elsewhere. --stop, --status and,
    without arguments, --follow apply to the last run launched in this directory. --follow ends with
    the run's exit status; Ctrl-C ends only --follow. After --stop or a crash, type the same command
    again to continue the run.
    """
    from snakemake_kochi.location import find_location

    asks = stop or status
    says_where = in_allocation is not None
    if asks and (arguments or says_where or (stop and status)):
        raise click.UsageError("--stop and --status can be combined with --follow only")
    location = find_location(machine, asks=not asks)
    is_in_one = in_allocation if says_where else location.machine.controller.in_allocation
    if limit is not None and not is_in_one:
        raise click.UsageError("-t requires --in-allocation")
    if limit is not None:
        from snakemake_kochi.cli.workers import seconds_of_limit
        from snakemake_kochi.schedulers.interface import time_limit

        limit = time_limit(seconds_of_limit(limit))
    if not (arguments or says_where or not (asks or follow)):
        if name:
            raise click.UsageError(
                "--name is of a run that is launched: type its arguments, too. The runs of this "
                "directory: kochi show runs"
            )
        return of_last(location, identity, position, stop=stop, status=status, as_json=as_json)
    if location.is_elsewhere:
        if follow:
            words = _words(location, name, in_allocation, limit, arguments)
            return _follow_elsewhere(location, words, None, 0)
        from snakemake_kochi.cli.elsewhere import run_elsewhere

        return run_elsewhere(location, with_files=True)
    location.prepare_machine()
    return _launch(location, name, arguments, in_allocation, limit, follow, as_json)


def of_last(
    location: Location,
    identity: str | None = None,
    position: int = 0,
    *,
    stop: bool = False,
    status: bool = False,
    as_json: bool = False,
) -> int:
    """Follow the last run launched in this directory, or the one with an identity, or stop or
    describe it; return the exit status of the command."""
    if location.is_elsewhere:
        if not (stop or status):
            return _follow_elsewhere(location, None, identity, position)
        from snakemake_kochi.cli.elsewhere import run_elsewhere

        return run_elsewhere(location, with_files=False)
    found = _last(location, identity)
    if status:
        _tell(location, found, as_json)
        return 0
    return _stop(location, found) if stop else follow_run(location, found, position)


def _words(
    location: Location,
    name: str,
    in_allocation: bool | None,
    limit: str | None,
    arguments: Sequence[str],
) -> list[str]:
    """The words after `kochi` that launch a run, without following it."""
    words = ["launch", "-m", location.machine.name]
    words += ["--name", name] if name else []
    if in_allocation is not None:
        words += ["--in-allocation" if in_allocation else "--on-login-node"]
    words += [] if limit is None else ["--time-limit", limit]
    return [*words, "--", *arguments]


def _follow_elsewhere(
    location: Location, words: Sequence[str] | None, identity: str | None, position: int
) -> int:
    """Follow a run on a login host from here, as the connection may be lost. `words`: what
    launches it, if it is not launched yet."""
    from snakemake_kochi.cli.joined_results import end_of_run
    from snakemake_kochi.remote.controller import follow_there, launch_there

    if words is None:
        return end_of_run(location, lambda: (follow_there(location, identity, position), True))
    return end_of_run(location, lambda: launch_there(location, words))


def _launch(
    location: Location,
    name: str,
    arguments: Sequence[str],
    in_allocation: bool | None,
    limit: str | None,
    follow: bool,
    as_json: bool,
) -> int:
    from snakemake_kochi.detached.control import how_to_follow, launch

    if not _SAYS_WHERE.intersection(word.split("=")[0] for word in arguments):
        from snakemake_kochi.allocation.workers import unused_scheduler

        if unused := unused_scheduler(location):
            remark(unused)
    # -P: as for the command `snakemake`, the project's own modules do not hide ours.
    words = [sys.executable, "-P", "-m", "snakemake", *_profile(location, arguments), *arguments]
    found = launch(location, name, words, remark, in_allocation, limit)
    leave_files_to_run()
    if as_json and not follow:
        print_json(found.describe())
        return 0
    say(f"Launched {found.launch.identity}, output: {found.paths.output}")
    if follow:
        return follow_run(location, found)
    remark(how_to_follow(location))
    return 0


def leave_files_to_run() -> None:
    """A run that was just launched is about to read the files of a project that another computer
    sent; until then, the end of this process lets nobody send others."""
    os.environ.pop(USE_VARIABLE, None)


def _profile(location: Location, arguments: Sequence[str]) -> list[str]:
    """The options that the user left to us."""
    from snakemake_kochi.cli.profile import installed_file
    from snakemake_kochi.resources import profiles_directory

    is_said = any(word.split("=")[0] in _SAYS_HOW for word in arguments)
    if is_said or os.environ.get("SNAKEMAKE_PROFILE"):
        return []
    profile = "cluster" if location.machine.has_allocations else "local"
    # An installed profile may have been changed.
    installed = installed_file(profile).parent
    return ["--profile", str(installed if installed.is_dir() else profiles_directory() / profile)]


def _tell(location: Location, found: Found, as_json: bool) -> None:
    """Print the state of the run, and its progress."""
    from snakemake_kochi.detached.launches import steps_of
    from snakemake_kochi.quantities import rough_duration

    steps = steps_of(found)
    eta = None
    if steps is not None and steps.left is not None:
        eta = datetime.now().astimezone() + timedelta(seconds=steps.left)
    described = found.describe() | {
        **{f"steps_{key}": getattr(steps, key, None) for key in ("done", "failed", "total")},
        "eta": None if eta is None else eta.isoformat(timespec="seconds"),
        "paused": _paused(location, found),
    }
    if as_json:
        print_json(described)
        return
    # For people, the command in a form that can be pasted.
    described["command"] = shlex.join(found.launch.command)
    if found.state == "elsewhere" and found.processes is not None:
        # "job 12: RUNNING (None)"
        job = f", in {found.scheduler.partition(':')[0]}" if found.scheduler else ""
        described["state"] = f"running on {found.processes.node.host}{job}"
    described["time_limit_reached"] = _TIME_UP if found.is_time_up else None
    pairs = {readable(key): value for key, value in described.items() if key != "eta"}
    if eta is not None and steps is not None and steps.left is not None:
        left = rough_duration(steps.left)
        pairs["ETA"] = f"{eta:%Y-%m-%d %H:%M:%S}, in about {left}"
    print_pairs({key: value for key, value in pairs.items() if value not in (None, "", [])})


def _paused(location: Location, found: Found) -> list[str]:
    """The batches in the directory of a run that are paused."""
    from snakemake_kochi.files import is_same_directory
    from snakemake_kochi.queue.paused import list_paused

    return [
        f"batch {each.batch} of {each.experiment}"
        for each in list_paused(location.machine_paths)
        if is_same_directory(each.directory, found.launch.directory)
    ]


def _last(location: Location, identity: str | None) -> Found:
    from snakemake_kochi.detached.control import find

    found = find(location.machine_paths, identity)
    if found is None and identity is None and location.project is not None:
        # A batch is launched in the project's directory.
        found = find(location.machine_paths, None, str(location.project.directory))
    if found is None:
        raise KochiError(
            f"nothing was launched in this directory on machine {location.machine.name}",
            "To launch the default target of the Snakefile, type: kochi launch",
        )
    return found


def _stop(location: Location, found: Found) -> int:
    from snakemake_kochi.detached.control import stop

    if found.is_over:
        say(f"{found.launch.identity} has ended already.")
        return 0
    written = found.paths.output.stat().st_size if found.paths.output.exists() else 0
    stop(found)
    remark(
        "The run was told to stop. Ctrl-C ends only this wait; to kill the run, type: "
        f"{location.typed('launch', '--stop')}"
    )
    ended = _show(location, found, written)
    say(f"{ended.launch.identity} {'was killed' if ended.state == 'killed' else 'has ended'}.")
    return 0


def follow_run(location: Location, found: Found, position: int = 0) -> int:
    """Show the output of a launched run from a position on; return its exit status."""
    ended = _show(location, found, position)
    if ended.is_time_up:
        remark(f"kochi: {ended.launch.identity}: {_TIME_UP}")
    if ended.status is not None and (ended.status <= 128 or ended.status == _INTERRUPTED):
        return ended.status
    remark(
        f"kochi: {ended.launch.identity} was killed; to see its jobs, type: "
        f"{location.typed('show jobs')}\n"
        "To continue the run, type the same command again. If Snakemake then says that the "
        "directory is locked, type first: snakemake --unlock"
    )
    return ended.status or 1


def _show(location: Location, found: Found, position: int) -> Found:
    """Show the run's output from a position on, until the run has ended."""
    from snakemake_kochi.detached.control import Watch, settled

    watch = Watch(found)
    check, question = Backoff(), Backoff()
    said = ""
    try:
        while True:
            if check.is_due:
                check.hold(_CHECK)
                found = watch.look()
                if question.is_due and not found.is_over:
                    question.hold(_QUESTION)
                    found = settled(found)
                    if found.scheduler not in ("", said):
                        said = found.scheduler
                        remark(said)
            position = copy_from(found.paths.output, position)
            if found.is_over:
                return found
            time.sleep(_LOOK)
    except KeyboardInterrupt:
        again = location.typed("launch", "--follow")
        remark(f"\nThe run goes on. To follow it again, type: {again}")
        raise
