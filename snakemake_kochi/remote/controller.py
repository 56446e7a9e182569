"""Runs on a login host: they are launched there, and followed from here.

The controller is near its queue and its workers, and needs nothing of this computer, which may
sleep, be switched off, or lose its network.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from snakemake_kochi.location import Location
from snakemake_kochi.remote.command import Needs, run_there
from snakemake_kochi.remote.refusal import AwayError
from snakemake_kochi.remote.session import write_all

_FIRST_PAUSE, _MOST_PAUSE = 2.0, 60.0  # seconds between two attempts to connect again
_JSON = "--json"


def launch_there(
    location: Location, words: Sequence[str], position: int | None = None
) -> tuple[int, bool]:
    """Launch a run on a login host, or join one, and follow it to its end; return its exit status,
    and whether there was a run: the command may have been refused.

    `words` after `kochi` have it launched and described as JSON. `position`: so many bytes of the
    output of a run that is joined were shown before; then the connection is not made again when it
    is lost. Raises KochiError; AwayError with what goes on.
    """
    is_alone = position is None
    while True:
        found = _launched(location, words)
        if isinstance(found, int):
            return found, False
        name, is_joined = str(found["launch"]), bool(found.get("joined"))
        _say(location, found, is_joined, is_alone)
        status = _follow(location, name, (position or 0) if is_joined else 0, is_alone)
        position = None if is_alone else 0
        # As `kochi batch --launch` does there.
        if not is_joined or status != 0:
            return status, True


def follow_there(location: Location, launch: str | None, position: int) -> int:
    """Follow a run on a login host to its end, by default the last one that was launched in this
    directory; return its exit status. Raises KochiError."""
    return _follow(location, launch, position, True)


def _launched(location: Location, words: Sequence[str]) -> dict[str, Any] | int:
    """What was launched; or the exit status if nothing was."""
    printed = bytearray()

    def write(stream: int, content: bytes) -> None:
        if stream == 1:
            printed.extend(content)
        else:
            write_all(2, content)

    status = run_there(location, [*words[:1], _JSON, *words[1:]], Needs.FILES, write=write)
    try:
        found = json.loads(printed) if status == 0 else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    write_all(1, bytes(printed))
    return status


def _say(location: Location, found: dict[str, Any], is_joined: bool, is_alone: bool) -> None:
    name, on = location.machine.name, f"-m {shlex.quote(location.machine.name)}"
    if is_joined:
        print(f"This batch runs already, launched at {found['launched']} as {found['launch']}.")
    else:
        print(f"Launched {found['launch']} on {name}, output there: {found['output']}")
    sys.stdout.flush()
    if not is_alone:
        return
    print(
        f"Ctrl-C ends only what is shown here. To see it again, type: kochi launch {on} --follow; "
        f"to stop the run: kochi launch {on} --stop",
        file=sys.stderr,
    )


def _follow(location: Location, launch: str | None, position: int, connects_again: bool) -> int:
    """Show the output of a run from a position on. A lost connection is made again."""
    shown = position

    def write(stream: int, content: bytes) -> None:
        nonlocal shown
        write_all(stream, content)
        if stream == 1:
            shown += len(content)

    pause = Pause()
    while True:
        before = shown
        run = [] if launch is None else ["--run", launch]
        machine = ["-m", location.machine.name]
        words = ["launch", *machine, "--follow", *run, "--from", str(shown)]
        try:
            return run_there(location, words, Needs.PLACE, write=write)
        except AwayError as error:
            if not connects_again or (launch is None and shown == 0):
                raise
            if shown > before:
                pause = Pause()
            pause.wait(_told(location, error))
        except KeyboardInterrupt:
            on = f"-m {shlex.quote(location.machine.name)}"
            print(
                f"\nThe run goes on on {location.machine.name}. To follow it again, type: "
                f"kochi launch {on} --follow; to stop it: kochi launch {on} --stop",
                file=sys.stderr,
            )
            raise


def _told(location: Location, error: AwayError) -> str:
    return f"{error.message.splitlines()[0]}. The run goes on on {location.machine.name}"


class Pause:
    """Waits longer and longer, and says so at first."""

    def __init__(self, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep, self._seconds = sleep, _FIRST_PAUSE

    def wait(self, what: str) -> None:
        """Wait until the next attempt."""
        if self._seconds == _FIRST_PAUSE:
            print(f"kochi: {what}; it is tried to connect again ...", file=sys.stderr, flush=True)
        self._sleep(self._seconds)
        self._seconds = min(2 * self._seconds, _MOST_PAUSE)
