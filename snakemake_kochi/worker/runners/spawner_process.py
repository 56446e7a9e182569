"""The spawner: a small process that forks the main processes of shell jobs for a worker.

A fork costs what the forking process has in memory, and both pay for it, the child and afterwards
the parent; a worker has several times more than this. Started by path, as
`python -I -S spawner_process.py <socket> <pid of the worker> <directories of packages>...`.

A request is one message, a JSON object, with two file descriptors beside it: the log, and the gate
from which the job's process reads its release. The answer is the request's number and that of this
process, which by then is a child of the worker, or instead of it the negative number of an error,
or 0 where the process may be there and cannot be known.
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
    enter,
    execute,
    lead_session,
    say,
)
from snakemake_kochi.worker.runners.preparation import UnpreparedError, prepare

_MOST_BYTES = 1 << 20
_DESCRIPTORS = 2
_PAUSE = 0.0002  # seconds


def main(link: socket.socket, worker: int) -> None:
    """Serve the worker until it closes its end, or dies."""
    end_with_parent()
    link.set_inheritable(False)
    # What a job ignores it is to have from whoever started the worker, not from Python.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # nothing is left to be collected, and looking for it copies memory
    gc.freeze()
    while os.getppid() == worker:
        request, descriptors, _, _ = socket.recv_fds(link, _MOST_BYTES, _DESCRIPTORS)
        if not request:
            return
        for descriptor in descriptors:
            # By a flag it would be for nothing: socket.recv_fds ignores all that it is given.
            os.set_inheritable(descriptor, False)
        _spawn(link, worker, json.loads(request), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _spawn(link: socket.socket, worker: int, request: dict[str, Any], log: int, held: int) -> None:
    """Fork twice: the process in between ends at once, and its child becomes the worker's, which
    adopts all orphans below it."""
    try:
        between = os.fork()
        if between == 0:
            _be_between(link, worker, request, log, held)
        _, status = os.waitpid(between, 0)
    except OSError as error:
        _answer(link, request, -(error.errno or 1))
        return
    if status != 0:
        # Ended by a signal it may have forked the job's process before.
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
        status = _run(job, request)
    except BaseException as error:
        say(job, repr(error))
    finally:
        os._exit(status)


def _run(job: Any, request: dict[str, Any]) -> int:
    """Becomes the command; returns only when that cannot be, with an exit status."""
    environment = request["environment"]
    shell: Any = SimpleNamespace(**request["shell"])
    if status := enter(job, environment):
        return status
    try:
        script = prepare(job, shell, environment, request["temporary"])
    except (UnpreparedError, OSError) as error:
        say(job, str(error))
        return 1
    return execute(job, shell.executable, [shell.executable, "-c", script], environment)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
