"""Where a controller hears how its tickets ended."""

from __future__ import annotations

import logging
import os
import secrets
import shutil

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, to_json, write_atomically
from snakemake_kochi.paths import ControllerPaths, MachinePaths
from snakemake_kochi.queue.bell import Bell, ring
from snakemake_kochi.queue.processes import ProcessIdentity, this_node
from snakemake_kochi.queue.result import Result, read_result
from snakemake_kochi.queue.ticket import now

_log = logging.getLogger(__name__)

VERSION = 1


class Inbox:
    """A directory into which the results of one controller's tickets are linked, and a bell.

    One thread waits; `wake` may be called from any other. Tickets name it by its `identity`.
    """

    def __init__(self, paths: ControllerPaths, identity: str) -> None:
        self.identity = identity
        self._paths = paths
        self._bell = Bell(paths.bell)
        self._delivered: set[tuple[int, str]] = set()

    @classmethod
    def create(cls, machine: MachinePaths) -> Inbox:
        """Make a new inbox for the calling process."""
        node = this_node()
        host = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in node.host)
        identity = f"{host.strip('.')[:64] or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"
        paths = machine.controller(identity)
        make_directory(paths.inbox)
        process = ProcessIdentity.of(os.getpid())
        assert process is not None
        state = {
            "version": VERSION,
            "controller": identity,
            "node": vars(node),
            "process": vars(process),
            "started": now(),
        }
        write_atomically(paths.state, to_json(state))
        return cls(paths, identity)

    def wait(self, timeout: float) -> list[Result]:
        """Sleep until rung, at most `timeout` seconds, and return the results that came in.

        Each is returned once. A damaged ticket of another controller also ends here: pass over
        jobs that are not yours.
        """
        self._bell.wait(timeout)
        results = []
        for name in sorted(os.listdir(self._paths.inbox)):
            path = self._paths.inbox / name
            try:
                result = read_result(path)
            except FileNotFoundError:
                continue
            except DamagedFileError as error:
                # Only a second name of the result's file goes; the file stays with the job.
                _log.warning("%s", error.message)
                path.unlink(missing_ok=True)
                continue
            path.unlink(missing_ok=True)
            # Who completes what a dead worker began cannot know whether the notice was read.
            if (result.job, result.nonce) not in self._delivered:
                self._delivered.add((result.job, result.nonce))
                results.append(result)
        return results

    def wake(self) -> None:
        """Make a `wait` in another thread return."""
        ring(self._paths.bell)

    def close(self) -> None:
        """Remove the inbox. Results that come later stay with their jobs."""
        self._bell.close()
        shutil.rmtree(self._paths.inbox.parent, ignore_errors=True)
