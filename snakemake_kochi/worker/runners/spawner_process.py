"""The spawner: a small process that forks the main processes of shell jobs for a worker.

The cost of a fork grows with the memory of the forking process, and both processes bear it. A
worker has several times the memory of the spawner.

The spawner is started by its path, as `python -I -S spawner_process.py <socket> <pid of the worker>
<directories of packages>...`. A request is one message, a JSON object, with two file descriptors
beside it: the log, and the gate from which the job's process reads its release. The answer is the
request's number, and the number of the job's process, which is then a child of the worker. Instead
of the process number the answer contains the negative number of an error, or 0 if the process may
exist but its number is unknown.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
from types import SimpleNamespace
from typing import Any, NoReturn

if __name__ == "__main__":
    sys.path += sys.argv[3:]

from snakemake_kochi.worker.runners.job_process import (
    CANNOT_EXECUTE,
    await_release,
    end_with_parent,
    execute_shell_job,
    lead_session,
    say,
)

_MOST_BYTES = 1 << 20
_DESCRIPTORS = 2
_PAUSE = 0.0002  # seconds


def main(link: socket.socket, worker: int) -> None:
    """Serve the worker until it closes its end of the socket, or dies."""
    end_with_parent()
    link.set_inheritable(False)
    # A job ignores the signals that the worker was started to ignore, but not those that Python
    # ignores.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # there is no garbage, and looking for it copies memory
    gc.freeze()
    while os.getppid() == worker:
        request, descriptors, _, _ = socket.recv_fds(link, _MOST_BYTES, _DESCRIPTORS)
        if not request:
            return
        for descriptor in descriptors:
            # socket.recv_fds ignores its argument for flags.
            os.set_inheritable(descriptor, False)
        _spawn(link, worker, json.loads(request), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _spawn(link: socket.socket, worker: int, request: dict[str, Any], log: int, held: int) -> None:
    """Fork twice, to make the job's process a child of the worker.

    The process in between ends at once, and the worker adopts all orphans among its descendants.
    """
    try:
        between = os.fork()
        if between == 0:
            _be_between(link, worker, request, log, held)
        _, status = os.waitpid(between, 0)
    except OSError as error:
        _answer(link, request, -(error.errno or 1))
        return
    if status != 0:
        # If a signal ended the process in between, that process may already have forked the job's
        # process.
        _answer(link, request, -os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0)


def _answer(link: socket.socket, request: dict[str, Any], answer: int) -> None:
    link.send(b"%d %d" % (request["number"], answer))


def _be_between(
    link: socket.socket, worker: int, request: dict[str, Any], log: int, held: int
) -> NoReturn:
    status = 1
    try:
        between = os.getpid()
        if os.fork() == 0:
            _be_job(link, between, worker, request, log, held)
        status = 0
    except OSError as error:
        status = error.errno or 1
    finally:
        os._exit(status)


def _be_job(
    link: socket.socket, between: int, worker: int, request: dict[str, Any], log: int, held: int
) -> NoReturn:
    job = SimpleNamespace(**request["job"])
    status = CANNOT_EXECUTE
    try:
        while os.getppid() == between:
            time.sleep(_PAUSE)
        lead_session(log, request["cpus"])
        _answer(link, request, os.getpid())
        await_release(held, worker)
        shell: Any = SimpleNamespace(**request["shell"])
        status = execute_shell_job(job, shell, request["environment"], request["temporary"])
    except BaseException as error:
        say(job, repr(error))
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
