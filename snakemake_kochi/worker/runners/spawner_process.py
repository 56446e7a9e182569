"""The spawner: a small process that forks the main processes of shell jobs for a worker.

The cost of a fork grows with the memory of the forking process, and both processes bear it; a
worker has several times the memory of the spawner. So this module and those that it imports use
only the standard library, and little of that.

The spawner is started by its path, as `python -I -S spawner_process.py <socket> <pid of the worker>
<directories of packages>...`. A request is one message, a JSON object, with two file descriptors
beside it: the log, and the gate from which the job's process reads its release. The answer is the
request's number, and the number of the job's process, which is then a child of the worker. Instead
of the process number the answer contains the negative number of an error, or 0 if the process may
exist but its number is unknown. A spawner of another program (`phase_process.py`) greets the worker
by an answer with the number 0 and its memory in MiB, when it can take requests.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace

if __name__ == "__main__":
    sys.path += sys.argv[3:]  # without them, it finds the standard library only

from snakemake_kochi.next.worker.job_process import (
    CANNOT_EXECUTE,
    end_with_parent,
    lead_session,
    say,
)
from snakemake_kochi.next.worker.shell_job import execute_shell_job
from snakemake_kochi.next.worker.sibling import sibling_fork
from snakemake_kochi.worker.runners.job_process import await_release

TYPE_CHECKING = False  # not from typing, for its size
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from snakemake_kochi.next.worker.job_process import Job
    from snakemake_kochi.queue.ticket import ShellJob

_MOST_BYTES = 1 << 20
_DESCRIPTORS = 2
# The errors of a fork where processes or memory are scarce: a second fork would fail, too.
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM)
_ADOPTION_PAUSE = 0.0002  # seconds between two looks whether the worker is the parent


class SpawnerProcess:
    """The process that forks those of the jobs, until the worker closes its end of the socket."""

    def __init__(
        self,
        link: socket.socket,
        worker: int,
        run: Callable[[Job, ShellJob, dict[str, str], str | None], int] = execute_shell_job,
        refuse: Callable[[Mapping[str, str]], int] = lambda environment: 0,
    ) -> None:
        """Serve nobody yet.

        `run` lives as the process of a job, like `execute_shell_job`, with the environment and the
        temporary directory of the job. `refuse` returns the number of an error if no copy of this
        process can have that environment, or 0.
        """
        link.set_inheritable(False)
        self._link = link
        self._worker = worker
        self._run = run
        self._refuse = refuse
        self._fork_sibling: Callable[[], int] | None = None

    def serve(self, idle: float | None = None) -> None:
        """Fork a process for each request; return when the worker closes its end, is dead, or
        requests nothing for `idle` seconds."""
        self._fork_sibling = sibling_fork()
        gc.disable()  # there is no garbage, and looking for it copies memory
        gc.freeze()
        while os.getppid() == self._worker:
            if idle is not None and not select.select([self._link], [], [], idle)[0]:
                return
            request, descriptors, _, _ = socket.recv_fds(self._link, _MOST_BYTES, _DESCRIPTORS)
            if not request:
                return
            for descriptor in descriptors:
                # socket.recv_fds ignores its argument for flags.
                os.set_inheritable(descriptor, False)
            self._spawn(json.loads(request), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    def answer(self, number: int, answer: int) -> None:
        self._link.send(b"%d %d" % (number, answer))

    def _spawn(self, request: dict[str, Any], log: int, held: int) -> None:
        """Make the job's process, a child of the worker, which tells the worker its number."""
        number = request["number"]
        try:
            if error := self._refuse(request["environment"]):
                raise OSError(error, os.strerror(error))
            if not self._fork_once(request, log, held):
                self._fork_twice(request, log, held)
        except OSError as error:
            self.answer(number, -(error.errno or 1))

    def _fork_once(self, request: dict[str, Any], log: int, held: int) -> bool:
        """Make the job's process; False where that is not possible in this way."""
        if self._fork_sibling is None:
            return False
        try:
            if self._fork_sibling() == 0:
                self._be_job(request, log, held)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            self._fork_sibling = None  # a container may forbid it
            return False
        return True

    def _fork_twice(self, request: dict[str, Any], log: int, held: int) -> None:
        """Make the job's process a child of the worker, where it cannot be made so.

        The process in between ends at once, and the worker adopts all orphans among its
        descendants.
        """
        between = os.fork()
        if between == 0:
            self._be_between(request, log, held)
        _, status = os.waitpid(between, 0)
        if status != 0:
            # If a signal ended the process in between, that process may already have forked the
            # job's process.
            answer = -os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
            self.answer(request["number"], answer)

    def _be_between(self, request: dict[str, Any], log: int, held: int) -> NoReturn:
        status = 1
        try:
            between = os.getpid()
            if os.fork() == 0:
                self._be_job(request, log, held, between)
            status = 0
        except OSError as error:
            status = error.errno or 1
        finally:
            os._exit(status)

    def _be_job(
        self, request: dict[str, Any], log: int, held: int, between: int | None = None
    ) -> NoReturn:
        job = SimpleNamespace(**request["job"])
        status = CANNOT_EXECUTE
        try:
            while os.getppid() == between:
                time.sleep(_ADOPTION_PAUSE)
            lead_session(log, request["cpus"])
            self.answer(request["number"], os.getpid())
            # While a copy has it open, the worker does not see that this process has ended.
            self._link.close()
            await_release(held, self._worker)
            shell: Any = SimpleNamespace(**request["shell"])
            status = self._run(job, shell, request["environment"], request["temporary"])
        except BaseException as error:
            say(job, repr(error))
        finally:
            os._exit(status)


def main(link: socket.socket, worker: int) -> None:
    """Serve the worker until it closes its end of the socket, or dies."""
    end_with_parent()
    # A job ignores the signals that the worker was started to ignore, but not those that Python
    # ignores.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    SpawnerProcess(link, worker).serve()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
