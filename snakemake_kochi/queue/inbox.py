"""Where a controller hears how its tickets ended."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Iterator

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import link_atomically, make_directory, to_json, write_atomically
from snakemake_kochi.paths import ControllerPaths, MachinePaths
from snakemake_kochi.queue.bell import Bell, ring
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

    def __init__(self, paths: ControllerPaths, identity: str) -> None:
        self.identity = identity
        self._paths = paths
        self._watched: tuple[ControllerPaths, ...] = (paths,)
        self._bell = Bell(paths.bell)
        self._delivered: set[tuple[int, str]] = set()

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
        return cls(paths, identity)

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
                # Only a second name of the result's file goes; the file stays with the job.
                _log.warning("%s", error.message)
                path.unlink(missing_ok=True)
                continue
            # Who completes what a dead worker began cannot know whether the notice was read.
            if (result.job, result.nonce) not in self._delivered:
                self._delivered.add((result.job, result.nonce))
                yield result

    def wake(self) -> None:
        """Make a `wait` in another thread return."""
        ring(self._paths.bell)

    def close(self) -> None:
        """Remove the inbox. Results that come later stay with their jobs."""
        self._bell.close()
        shutil.rmtree(self._paths.inbox.parent, ignore_errors=True)
