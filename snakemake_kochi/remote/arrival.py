"""On the login host: what a command has to do first that comes from another computer.

The command is executed as it was typed there. $KOCHI_ARRIVAL has what it cannot know:

{"attended": whether it ends when its connection does, although it has no terminal,
 "directory": where it works, which is made; null: where it is already,
 "machines": the file with the texts of files with machines for all projects, for a command without
             a project; null for others,
 "receives": the commit of the project as it was sent, or null}
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "KOCHI_ARRIVAL"


def arrive() -> None:
    """Prepare this process, before it does anything else. Raises KochiError, OSError."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return
    given: dict[str, Any] = json.loads(text)
    if given["attended"]:
        end_with_connection()
    _prepare(given)


def _prepare(given: dict[str, Any]) -> None:
    from snakemake_kochi.files import make_directory
    from snakemake_kochi.paths import SENT_VARIABLE, USE_VARIABLE, Root, SentPaths
    from snakemake_kochi.remote.receive import receive, write_machines

    place = SentPaths(Path(os.environ[SENT_VARIABLE]))
    if given["receives"] is not None:
        receive(place, given["receives"], os.environ[USE_VARIABLE], os.getpid())
    elif given["machines"] is not None:
        root = Root(place.root)
        root.secure(place.state)
        with root.explaining():
            file = Path(given["machines"])
            write_machines(place, json.loads(file.read_bytes()))
            file.unlink()
    if given["directory"] is not None:
        os.chdir(make_directory(Path(given["directory"])))
        os.environ["PWD"] = given["directory"]


def end_with_connection() -> None:
    """Have this process group end (SIGHUP) when nobody reads its standard output any more.

    With a terminal the kernel does this. Without one, sshd only closes the streams, and a command
    that prints nothing would go on for ever after its user is gone.
    """
    watched, group = os.getpid(), os.getpgrp()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)
        return
    # A grandchild, so that nobody finds an unknown child.
    if os.fork() != 0:
        os._exit(0)
    try:
        _watch(watched, group)
    finally:
        os._exit(0)


def _watch(watched: int, group: int) -> None:
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    # It must not keep standard error open, nor read what is meant for the command.
    os.dup2(nothing, 0)
    os.dup2(nothing, 2)
    process = os.pidfd_open(watched)
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.register(1, 0)  # errors and hang-ups are always told
    if process not in dict(poll.poll()):
        with suppress(OSError):
            os.killpg(group, signal.SIGHUP)
