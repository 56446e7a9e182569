"""The ssh server of a worker, which lets its user in when a person asks for that.

It is a process beside the jobs, and ends with the worker, however; see `terminal.login`.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from snakemake_kochi.base import files
from snakemake_kochi.paths import LoginPaths
from snakemake_kochi.tickets.names import WorkerPaths
from snakemake_kochi.worker.runners import Forks

SERVER = "login"  # its name among those of the supervisor
_MODULE = "snakemake_kochi.terminal.login_server"
_log = logging.getLogger(__name__)


class Logins:
    def __init__(self, forks: Forks, worker: str, paths: WorkerPaths) -> None:
        self._forks = forks
        self._worker = worker
        self._paths = LoginPaths(Path(paths.login))
        self._was_started = False

    def obey(self) -> None:
        """Start the server, if there is none.

        If it ends at this moment, whoever waits for it asks again.
        """
        try:
            if not self._forks.serves(SERVER):
                self._start()
            files.unlink(str(self._paths.asked))
        except OSError as error:
            _log.warning("no ssh server for its user can be started now: %s", error)

    def _start(self) -> None:
        self._forget_answer()  # that of an earlier server
        command = [sys.executable, "-P", "-m", _MODULE, str(self._paths.directory), self._worker]
        log = files.open_end(str(self._paths.log))
        try:
            self._was_started = True
            self._forks.serve(SERVER, command, os.environ, "/", log)
        finally:
            files.close(log)
        _log.info("an ssh server for its user starts")

    def close(self) -> None:
        """The supervisor is about to end the server, which then tells nobody that it is gone."""
        if self._was_started:
            self._forget_answer()

    def _forget_answer(self) -> None:
        with suppress(OSError):
            files.unlink(str(self._paths.answer))
