"""Where a controller hears how its tickets ended."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import link_atomically, make_directory, to_json, write_atomically
from snakemake_kochi.paths import ControllerPaths, MachinePaths
from snakemake_kochi.queue.bell import Bell, ring
from snakemake_kochi.queue.entries import Entry
from snakemake_kochi.queue.jobs import damaged_result
from snakemake_kochi.queue.processes import ProcessIdentity, this_node
from snakemake_kochi.queue.result import Result, read_result
from snakemake_kochi.queue.ticket import now

_log = logging.getLogger(__name__)

VERSION = 1


class Inbox:
    """A directory into which the results of one controller's tickets are linked, and a bell.

    One thread waits; `wake` and `adopt` may be called from any other. Tickets name it by its
    `identity`.
    """

    def __init__(self, machine: MachinePaths, identity: str, state: Mapping[str, Any]) -> None:
        self.identity = identity
        self._machine = machine
        self._paths = paths = machine.controller(identity)
        self._state = dict(state)
        self._watched: tuple[ControllerPaths, ...] = (paths,)
        self._bell = Bell(paths.bell)
        self._delivered: set[tuple[int, str]] = set()
        self._unreadable: set[Path] = set()

    @classmethod
    def create(cls, machine: MachinePaths, directory: str | None = None) -> Inbox:
        """Make a new inbox for the calling process, which hands over tickets of one directory:
        there the next controller looks for what this one leaves when it is killed."""
        node = this_node()
        host = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in node.host)
        identity = f"{host.strip('.')[:64] or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"
        paths = machine.controller(identity)
        make_directory(paths.inbox)
        make_directory(paths.delivered)
        process = ProcessIdentity.of(os.getpid())
        assert process is not None
        state = {
            "version": VERSION,
            "controller": identity,
            "node": vars(node),
            "process": vars(process),
            "directory": directory,
            "started": now(),
        }
        write_atomically(paths.state, to_json(state))
        return cls(machine, identity, state)

    def note_queue(self, name: str) -> None:
        """Note that tickets are about to be handed over to a queue: who takes over from this
        controller looks only into those that it noted, into all if it noted none.

        Raises KochiError when that cannot be written.
        """
        queues = self._state.get("queues", [])
        if name in queues:
            return
        state = {**self._state, "queues": [*queues, name]}
        try:
            write_atomically(self._paths.state, to_json(state))
        except OSError as error:
            raise KochiError(
                f"no ticket was handed over: cannot write {self._paths.state}: {error.strerror}"
            ) from error
        self._state = state

    def adopt(self, machine: MachinePaths, dead: str) -> None:
        """Also watch the inbox of a controller that is dead: jobs of it may be running still.

        Its `inbox/` and `delivered/` stay as they are when this inbox is closed.
        """
        paths = machine.controller(dead)
        make_directory(paths.inbox)
        make_directory(paths.delivered)
        link_atomically(paths.bell, self._paths.bell)
        self._watched = (*self._watched, paths)

    def wait(self, timeout: float) -> list[Result]:
        """Sleep until rung, at most `timeout` seconds, and return the results that came in.

        Each is returned once. A damaged ticket of another controller also ends here: pass over
        jobs that are not yours.
        """
        self._bell.wait(timeout)
        return [result for paths in self._watched for result in self._take_in(paths)]

    def _take_in(self, paths: ControllerPaths) -> Iterator[Result]:
        for name in sorted(os.listdir(paths.inbox)):
            path = paths.inbox / name
            try:
                result = read_result(path)
                # Not unlinked: we may be killed before anything is done about it.
                os.replace(path, paths.delivered_notice(name))
            except FileNotFoundError:
                continue
            except DamagedFileError as error:
                _log.warning("%s", error.message)
                # Only a second name of the result's file goes; the file stays with the job.
                path.unlink(missing_ok=True)
                job = name.split("-")[0]
                if not job.isdecimal():
                    continue
                result = damaged_result(self._machine, Entry(path, int(job), 1), error.message)
            except OSError as error:
                # Perhaps it can be read, or moved, with the next look.
                if path not in self._unreadable:
                    _log.warning("a result cannot be taken in yet: %s", error)
                self._unreadable.add(path)
                continue
            # Who completes what a dead worker began cannot know whether the notice was read.
            if (result.job, result.nonce) not in self._delivered:
                self._delivered.add((result.job, result.nonce))
                yield result

    def wake(self) -> None:
        """Make a `wait` in another thread return."""
        ring(self._paths.bell)

    def close(self) -> None:
        """Remove the inbox. Results that come later stay with their jobs.

        With jobs that have not ended, `leave` it.
        """
        self._bell.close()
        shutil.rmtree(self._paths.inbox.parent, ignore_errors=True)

    def leave(self) -> None:
        """Close it, but leave it to the next controller of the directory, on whatever host, as if
        this one had been killed: it must not start beside jobs that have not ended."""
        with contextlib.suppress(OSError):  # then the end of the process tells it
            write_atomically(self._paths.state, to_json({**self._state, "left": True}))
        self._bell.close()
