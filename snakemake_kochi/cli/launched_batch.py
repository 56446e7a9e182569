"""`kochi batch --launch`: a batch whose run goes on without a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from snakemake_kochi.cli.launch import follow_run, leave_files_to_run
from snakemake_kochi.cli.output import print_json, remark, say
from snakemake_kochi.detached.control import find, how_to_follow, launch
from snakemake_kochi.detached.launches import Found, look_at
from snakemake_kochi.location import Location


def launch_batch(
    location: Location,
    name: str,
    command: Sequence[str],
    prepare: Callable[[], None],
    follow: bool,
    as_json: bool,
    position: int = 0,
) -> int:
    """Launch the command of a batch in the project's directory, or join a run of the same command
    that goes on there; return the exit status.

    `prepare` comes before a new run; `position`: so much of the output of one that is joined was
    shown before. Raises KochiError, also while another launched run goes on.
    """
    os.chdir(location.require_project().directory)
    while True:
        location.prepare_machine()
        last = find(location.machine_paths)
        is_joined = last is not None and _goes_on(last, command)
        if last is not None and is_joined:
            found = last
        else:
            if last is None or last.is_over:
                prepare()
            found = launch(location, name, command, remark)
            leave_files_to_run()
        if as_json:
            print_json(found.describe() | {"joined": is_joined})
            return 0
        _tell(location, found, is_joined)
        if not follow:
            return 0
        status = follow_run(location, found, position if is_joined else 0)
        position = 0
        # A run that was joined has the files of its start, and these may have changed since; or the
        # process that launched it was killed before it began.
        has_begun = look_at(found.paths).processes is not None
        if not is_joined or (status != 0 and has_begun):
            return status


def _goes_on(found: Found, command: Sequence[str]) -> bool:
    """Whether it is a run of this command that goes on."""
    if found.is_over or found.launch.command != tuple(command):
        return False
    # Of a run on another host this is not known yet unless a scheduler says so: `launch` finds out.
    return found.state != "elsewhere" or bool(found.scheduler)


def _tell(location: Location, found: Found, is_joined: bool) -> None:
    launched = found.launch
    if is_joined:
        say(f"This batch runs already, launched at {launched.time} as {launched.identity}.")
    else:
        say(f"Launched {launched.identity}, output: {found.paths.output}")
    remark(how_to_follow(location))
