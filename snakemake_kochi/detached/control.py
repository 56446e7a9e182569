"""Launching a run that needs no terminal, finding out its state, and stopping it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.detached.launches import (
    Found,
    Launch,
    last_launch,
    look_at,
    make_launch,
    write_gone,
    write_stop,
)
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.files import make_directory
from snakemake_kochi.location import Location
from snakemake_kochi.locks import LockBusyError, find_lock_settings
from snakemake_kochi.paths import LaunchPaths, MachinePaths
from snakemake_kochi.project.machines import LOCAL
from snakemake_kochi.quantities import seconds_since
from snakemake_kochi.schedulers.interface import time_limit
from snakemake_kochi.schedulers.native import system, system_of_host
from snakemake_kochi.tickets.watching import INTERVAL, SILENT, Pulse

_PATIENCE = 20.0  # seconds within which a supervisor must start
_MOST_PATIENCE = 60.0  # seconds after which a supervisor must no longer start
_PAUSE = 0.02  # seconds between two looks for it
_LOOK = 0.5  # seconds between two looks at a run on another host


def how_to_follow(location: Location) -> str:
    """What to type for the run that was launched last in the current directory."""
    follow, stop = (location.typed("launch", word) for word in ("--follow", "--stop"))
    return f"To follow it, type: {follow}; to stop it: {stop}"


def launch(
    location: Location,
    name: str,
    command: Sequence[str],
    say: Callable[[str], None],
    in_allocation: bool | None = None,
    limit: str | None = None,
) -> Found:
    """Start a command in the current directory, and leave it running.

    It runs on this host, or in a small job of the machine's scheduler with a time limit: where the
    machine has its controllers, unless something else is given. Raises KochiError, also when a run
    launched in this directory goes on. If it takes time to find out whether such a run goes on, a
    message says so first.
    """
    machine, place = location.machine_paths, location.machine.controller
    in_allocation = place.in_allocation if in_allocation is None else in_allocation
    if limit is None and place.time is not None:
        limit = time_limit(place.time)
    if in_allocation and location.machine.scheduler is None:
        raise KochiError(
            f"machine {location.machine.name} has no scheduler, which --in-allocation requires",
            "Leave out --in-allocation, or add 'scheduler: slurm' to the machine in kochi.yaml. To "
            "add the machine of this login node, type: kochi init --machine",
        )
    make_directory(machine.launches)
    _await_elsewhere(machine, say)
    locks = find_lock_settings(machine)
    try:
        with locks.hold(locks.paths.launches, patience=_PATIENCE):
            _refuse_a_second(location)
            launched, paths = make_launch(machine, name, command, in_allocation)
            if in_allocation:
                _submit(location, launched, paths, limit)
            else:
                _start(location, paths)
    except LockBusyError as error:
        raise KochiError(f"another kochi launch has not ended: {error}") from error
    return look_at(paths)


def _refuse_a_second(location: Location) -> None:
    found = find(location.machine_paths)
    if found is None or found.is_over:
        return
    hint = (
        "A directory has one on a machine at a time; when it has ended, type the same line again. "
        f"{how_to_follow(location)}"
    )
    if found.state == "elsewhere" and found.processes is not None:
        hint += f". It is on {found.processes.node.host}"
    raise KochiError(
        f"a run launched in this directory goes on: {_named(found)} ({found.state}), output: "
        f"{found.paths.output}",
        hint,
    )


def _named(found: Found) -> str:
    name = found.launch.name
    return f"{found.launch.identity}, {name}" if name else found.launch.identity


def _await_elsewhere(machine: MachinePaths, say: Callable[[str], None]) -> None:
    """Wait until it is known whether the last run launched here goes on, if it is on another host.

    If it does not go on, this is recorded.
    """
    found = find(machine)
    if found is None or found.state != "elsewhere" or found.processes is None:
        return
    say(
        f"The last run launched in this directory is on {found.processes.node.host}: waiting "
        f"{SILENT * INTERVAL:.0f} s for a sign of its life ..."
    )
    watch = Watch(found)
    while watch.look().state == "elsewhere" and watch.is_still:
        time.sleep(_LOOK)


class Watch:
    """Detects that a run on another host does not go on, because its heartbeat has stopped."""

    def __init__(self, found: Found) -> None:
        self._paths = found.paths
        self._pulse = Pulse(str(found.paths.alive))
        self._pulse.look()

    @property
    def is_still(self) -> bool:
        """Whether the last look saw no sign of life."""
        return self._pulse.still > 0

    def look(self) -> Found:
        """The present state of the run."""
        found = look_at(self._paths)
        if found.state == "elsewhere" and self._pulse.look() >= SILENT:
            write_gone(self._paths)
            return look_at(self._paths)
        return found


def _variables(location: Location) -> dict[str, str]:
    """The environment variables of the run.

    A compute node is not the login host, so a variable must tell that the node belongs to the
    machine.
    """
    if location.machine.name == LOCAL:
        return location.variables
    return {**location.variables, "KOCHI_MACHINE": location.machine.name}


def _supervisor(paths: LaunchPaths) -> list[str]:
    return [sys.executable, "-P", "-m", "snakemake_kochi.detached", str(paths.directory)]


def _start(location: Location, paths: LaunchPaths) -> None:
    with paths.output.open("ab") as output:
        process = subprocess.Popen(
            _supervisor(paths),
            env={**os.environ, **_variables(location)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # The terminal cannot reach the run: neither Ctrl-C nor a logout ends it.
            start_new_session=True,
        )

    def has_started() -> bool:
        if paths.process.exists() or paths.end.exists():
            return True
        if process.poll() is not None and not paths.process.exists():
            write_gone(paths)
            raise WorkerError(f"the run did not start; its output is in {paths.output}")
        return False

    if not wait_until(has_started, _PATIENCE, _PAUSE):
        # Do not kill it: processes that it may have started would go on without any record.
        raise WorkerError(
            f"the run has not started in {_PATIENCE:.0f} s; its output is in {paths.output}",
            "To see whether it starts later, type: kochi launch --status",
        )


def _submit(location: Location, launched: Launch, paths: LaunchPaths, limit: str | None) -> None:
    assert launched.job_name is not None and location.machine.scheduler is not None
    variables: Mapping[str, str] = _variables(location)
    words = ["env", *(f"{name}={value}" for name, value in variables.items()), *_supervisor(paths)]
    try:
        system(location.machine.scheduler).submit_controller(
            launched.job_name,
            shlex.join(words),
            paths.output,
            location.machine.allocation,
            limit,
            location.purpose(f"run={launched.name}"),
        )
    except KochiError:
        # No job was made. The directory would represent a launch without any further events.
        paths.launch.unlink()
        paths.directory.rmdir()
        raise


def find(
    machine: MachinePaths, identity: str | None = None, directory: str | None = None
) -> Found | None:
    """The last launch of a directory, by default the current one, or the one with an identity, in
    its present state."""
    if identity is None:
        found = last_launch(machine, directory or os.getcwd())
    else:
        is_there = identity in machine.launch_names()
        found = look_at(machine.launch(identity)) if is_there else None
    return None if found is None else settled(found)


def settled(found: Found) -> Found:
    """The present state of a launch, with the report of its scheduler if necessary.

    The scheduler is asked about a run in its hands that is on another host or has not begun. If a
    run of this host does not begin, its supervisor or the process that launched it was killed.
    """
    if found.launch.job_name is None and found.state == "launched":
        if (seconds_since(found.launch.time) or 0.0) > _MOST_PATIENCE:
            write_gone(found.paths)
        return look_at(found.paths)
    if found.launch.job_name is None or found.state not in ("launched", "elsewhere"):
        return found
    try:
        job = system_of_host().find_controller(found.launch.job_name)
    except KochiError:
        return found  # unknown, which does not mean ended
    if job is not None:
        return replace(found, scheduler=f"job {job.id}: {job.state} ({job.reason})")
    os.listdir(found.paths.directory)  # makes NFS look again for files that were missing
    if not look_at(found.paths).is_over:
        write_gone(found.paths)
    return look_at(found.paths)


def stop(found: Found) -> None:
    """Tell a run to end, as Ctrl-C does; a second call ends it at once.

    The supervisor of a run on another host is told by a file. Raises KochiError if there is none
    yet.
    """
    if found.launch.job_name is not None:
        scheduler = system_of_host()
        if (job := scheduler.find_controller(found.launch.job_name)) is not None:
            scheduler.interrupt_controller(job)
        return
    if found.processes is None:
        raise KochiError("the run is still starting", "Try again in a few seconds.")
    if found.state == "elsewhere":
        write_stop(found.paths)
    elif found.state == "running":
        os.kill(found.processes.supervisor.pid, signal.SIGINT)
    elif found.state == "unattended":
        os.killpg(found.processes.run.pid, signal.SIGINT)
