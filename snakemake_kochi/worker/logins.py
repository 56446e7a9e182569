"""A worker starts an ssh server for its user, when a file tells it to."""

from __future__ import annotations

import contextlib
import logging
import math
import subprocess
import sys
import time

from snakemake_kochi.files import is_there
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.worker.own_directory import OwnDirectory

_log = logging.getLogger(__name__)
# Seconds between two looks for the file, once there is a directory for it: a worker with many short
# jobs is notified all the time. Without a notification, the file can only come from another node.
_BETWEEN = 1.0
_BETWEEN_UNNOTIFIED = 5.0
_MODULE = "snakemake_kochi.terminal.login_server"


class Logins:
    """The ssh server of one worker; no method raises OSError.

    It is a process beside the worker, so that logins cost the worker's loop nothing.
    """

    def __init__(self, machine: MachinePaths, worker: int, own: OwnDirectory) -> None:
        self._own = own
        self._paths = machine.worker(worker).login
        self._worker = worker
        self._looked = -math.inf
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def helpers(self) -> frozenset[int]:
        """The server's process, which belongs to no job; see `Runner.helpers`."""
        if self._server is not None and self._server.poll() is not None:
            self._server = None
        return frozenset() if self._server is None else frozenset({self._server.pid})

    def obey(self, is_notified: bool) -> None:
        """Start the server if a person asks for it and there is none."""
        pause = _BETWEEN if is_notified else _BETWEEN_UNNOTIFIED
        if time.monotonic() < self._looked + pause:
            return
        with contextlib.suppress(OSError):  # the orders to leave say that it is not known now
            if not self._own.has(self._paths.directory):
                return
        self._looked = time.monotonic()
        try:
            if not is_there(self._paths.asked):
                return
            if not self.helpers:
                self._paths.answer.unlink(missing_ok=True)  # that of an earlier server
                self._start()
            self._paths.asked.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("no ssh server for its user can be started now: %s", error)

    def _start(self) -> None:
        words = [sys.executable, "-P", "-m", _MODULE, str(self._paths.directory)]
        with self._paths.log.open("ab") as log:
            self._server = subprocess.Popen(
                [*words, str(self._worker)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the worker's terminal is for the worker.
                start_new_session=True,
            )
        _log.info("an ssh server for its user was started: process %d", self._server.pid)

    def close(self) -> None:
        """End the server; the worker's supervisor ends what is left of it."""
        if self.helpers and self._server is not None:
            with contextlib.suppress(OSError):
                self._server.terminate()
            # The server does so, too, unless the supervisor is faster.
            with contextlib.suppress(OSError):
                self._paths.answer.unlink(missing_ok=True)
