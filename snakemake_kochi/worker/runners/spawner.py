"""A worker's spawner: the small process that forks the processes of its shell jobs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import snakemake_kochi
from snakemake_kochi.worker.runners import spawner_process

_log = logging.getLogger(__name__)

# Seconds that an answer may take; it takes a millisecond, and the start of the spawner thirty.
_PATIENCE = 10.0
_MOST_FAILURES = 3
# Linux lets a message of a socket have some 200 KiB.
_MOST_BYTES = 128 * 1024


class SpawnerFailedError(Exception):
    """It did not answer, or the request is too large for it. No process of the job can begin: its
    gate is never opened."""


class Spawner:
    """Starts the process when it is needed, and again when it has died; after some failures in a
    row it is not asked any more."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._failures = 0
        self._asked = 0

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._process is None else (self._process.pid,)

    @property
    def is_usable(self) -> bool:
        return self._failures < _MOST_FAILURES

    def spawn(self, request: Mapping[str, Any], log: int, held: int) -> int:
        """Returns the number of a new child of the worker, the leader of a session, that does what
        is requested once it reads its release from `held`.

        Raises OSError when there can be no process, and SpawnerFailedError.
        """
        self._asked += 1
        data = json.dumps({**request, "number": self._asked}).encode()
        if len(data) > _MOST_BYTES:
            raise SpawnerFailedError(f"the request has {len(data)} bytes")
        try:
            if self._link is None:
                self._link = self._start()
            answer = self._ask(self._link, data, (log, held))
        except (OSError, SpawnerFailedError) as error:
            self._failures += 1
            _log.warning("the spawner of shell jobs does not work: %s", error)
            self.close()
            raise SpawnerFailedError(str(error)) from error
        self._failures = 0
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer

    def _ask(self, link: socket.socket, data: bytes, descriptors: Sequence[int]) -> int:
        socket.send_fds(link, [data], descriptors)
        # What was killed in between can leave an answer behind that nobody waited for.
        asked = 0
        while asked != self._asked:
            if not (found := link.recv(64)):
                raise SpawnerFailedError("it has died")
            asked, answer = map(int, found.split())
        if answer == 0:
            raise SpawnerFailedError("what it had forked was killed")
        if answer > 0:
            # Raises ChildProcessError for what is no child of the worker.
            os.waitid(os.P_PID, answer, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return answer

    def _start(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_PATIENCE)
        # Ours, and for what is imported only where it is needed, those of the worker.
        packages = [str(Path(snakemake_kochi.__file__).parents[1])]
        packages += [path for path in sys.path if os.path.isabs(path)]
        command = [sys.executable, "-I", "-S", str(spawner_process.__file__)]
        with its:
            self._process = subprocess.Popen(
                [*command, str(its.fileno()), str(os.getpid()), *packages],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        return ours

    def close(self) -> None:
        """End it; it is started again for the next request."""
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(ChildProcessError):
                self._process.wait()
            self._process = None
