"""A zygote: a process that has parsed a workflow, and copies itself for each job.

A worker starts it as `python -m snakemake_kochi.worker.runners.zygote.process SOCKET PID`, with the
worker's pid, in the directory of the workflow. It ends when the worker closes the socket, and when
it has not been used for a while.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from snakemake_kochi.next.worker.copies import memory_mb, run_as_main
from snakemake_kochi.next.worker.job_process import (
    CANNOT_EXECUTE,
    end_with_parent,
    lead_session,
)
from snakemake_kochi.next.worker.parse_state import (
    Randomness,
    Reads,
    keep_temporary_directories,
)
from snakemake_kochi.next.worker.shell_job import missing_files
from snakemake_kochi.next.worker.snakemake_internals import (
    ParsedWorkflow,
    UnfitError,
    parse,
    pose_as_snakemake,
)
from snakemake_kochi.processes import child_pids
from snakemake_kochi.worker.runners.variables import Variables
from snakemake_kochi.worker.runners.zygote.link import VERSION, Copies, Job, receive, send

# Seconds without a job. A run whose jobs come in waves should still find the zygote. A worker that
# stays serves many runs, each with a zygote of its own of some 100 MiB.
_IDLE = 300.0
# All of them are checked before each job, which takes a microsecond or two for each, or more on a
# network filesystem.
_MOST_READS = 2000
_NOT_PARSED = "its parse failed"
_TERM = (signal.SIGTERM,)


class ToldToEnd(BaseException):
    """SIGTERM, sent by the worker or by a scheduler that ends the allocation.

    The zygote ends, and Snakemake removes its temporary directory. No handler for Exception catches
    it.
    """


def _tell_to_end(number: int, frame: FrameType | None) -> NoReturn:
    raise ToldToEnd


def main(link: socket.socket, worker: int) -> None:
    end_with_parent()
    try:
        signal.signal(signal.SIGTERM, _tell_to_end)
        message, _ = receive(link)
        if message is None or os.getppid() != worker:
            return
        why = _prepare_and_serve(link, worker, message)
    except ToldToEnd:
        return
    except UnfitError as error:
        why = error.message
    except (Exception, SystemExit):  # Snakemake itself fails at some errors of workflows
        traceback.print_exc()
        why = _NOT_PARSED
    if why:
        send(link, {"failed": why})


def _prepare_and_serve(link: socket.socket, worker: int, message: Mapping[str, Any]) -> str:
    """Parse the workflow and serve jobs; return why that is not possible, or ""."""
    if message.get("version") != VERSION:
        return "the worker is of another release"
    arguments: list[str] = message["arguments"]
    cores = ("--cores", str(message["cores"]))
    pose_as_snakemake([*arguments, *cores])
    variables = Variables()
    randomness = Randomness()
    reads = Reads([".snakemake"])
    descriptors = _descriptors()

    def begin() -> None:
        randomness.begin()
        variables.begin()
        reads.begin()

    def serve(workflow: ParsedWorkflow) -> None:
        reads.end()
        variables.end()
        randomness.end()
        gc.collect()
        _require_nothing_shared(descriptors, randomness)
        _import_if_safe(workflow.wanted_modules)
        # Block SIGTERM while copies are made: a copy would also get the exception.
        signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)
        if len(reads) > _MOST_READS:
            raise UnfitError(f"it reads more than {_MOST_READS} files and directories")
        keep_temporary_directories()
        _Zygote(link, worker, workflow, reads, randomness, variables).serve()

    return "" if parse(arguments, cores, begin, serve) else _NOT_PARSED


def _descriptors() -> set[tuple[int, str]]:
    """The open files, except devices."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return {(number, path) for number, path in found if not path.startswith("/dev/")}


def _require_nothing_shared(before: set[tuple[int, str]], randomness: Randomness) -> None:
    """Check that copies share nothing that each job would have for itself in its own process.

    Raises UnfitError.
    """
    for _, path in _descriptors() - before:
        raise UnfitError(f"its parse opens {path}, and does not close it")
    if child_pids():
        raise UnfitError("its parse starts processes that it does not wait for")
    if randomness.has_others:
        raise UnfitError("its parse makes a generator of random numbers")
    if not _is_safe_to_fork():
        raise UnfitError("its parse starts threads")


def _is_safe_to_fork() -> bool:
    """Whether a copy of this process would work.

    A copy has only one thread. It would wait for ever for locks that other threads held, or for
    their work.
    """
    if threading.active_count() > 1:
        return False
    # Libraries that are prepared for a fork, such as OpenBLAS, end their threads before it.
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) == 1


def _import_if_safe(names: Sequence[str]) -> None:
    """Import the modules that exist and start no threads; a copy tries each module first."""
    for name in names:
        if name not in sys.modules:
            if (pid := os.fork()) == 0:
                _try_import(name)
            if os.waitpid(pid, 0)[1] == 0:
                importlib.import_module(name)


def _try_import(name: str) -> NoReturn:
    is_safe = False
    try:
        importlib.import_module(name)
        is_safe = _is_safe_to_fork()
    finally:
        os._exit(0 if is_safe else 1)


class _Zygote:
    def __init__(
        self,
        link: socket.socket,
        worker: int,
        workflow: ParsedWorkflow,
        reads: Reads,
        randomness: Randomness,
        variables: Variables,
    ) -> None:
        self._link = link
        self._worker = worker
        self._workflow = workflow
        self._reads = reads
        self._randomness = randomness
        self._variables = variables
        self._directory = Path.cwd()
        self._identity = os.stat(".")
        self._copies = Copies(self._live_as_job)

    def serve(self) -> None:
        """Copy this process for each job of the worker, until the worker closes the link."""
        gc.collect()
        gc.freeze()  # otherwise the collector would copy memory that all copies can share
        ready = {
            "ready": True,
            "memory_mb": memory_mb(),
            "reads_cores": self._workflow.reads_cores,
        }
        send(self._link, ready)
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        while True:
            # A job that already waits comes first.
            if not poll.poll(0):
                self._copies.refill()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERM)
            try:
                has_message = poll.poll(_IDLE * 1000)
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)
            if not has_message:
                return
            self._copies.refill(0)
            message, descriptors = receive(self._link)
            if message is None:
                return
            send(self._link, self._answer(message, *descriptors))
            for descriptor in descriptors:
                os.close(descriptor)

    def _answer(self, message: Mapping[str, Any], log: int, held: int) -> dict[str, Any]:
        if (changed := self._changed()) is not None:
            return {"stale": changed}
        if name := self._variables.read_of((*message["set"], *message["unset"])):
            return {"unfit": f"its parse reads the variable {name}, and each job has its own"}
        try:
            return {"pid": self._copies.give(message, [log, held])}
        except OSError as error:
            return {"failed": f"no process can be made: {error.strerror}"}

    def _changed(self) -> str | None:
        """A path that has changed since the workflow was read, or None."""
        try:
            is_there = os.path.samestat(self._directory.stat(), self._identity)
        except OSError:
            is_there = False
        return self._reads.changed() if is_there else str(self._directory)

    def _live_as_job(self, await_job: Callable[[], Job]) -> NoReturn:
        """Live as a job's process; must not return or raise."""
        status = CANNOT_EXECUTE
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERM)
            # The worker must see the end of the zygote also while jobs run.
            self._link.close()
            message, (log, held) = await_job()
            # Not earlier: only now the worker knows this process and is its parent.
            if os.read(held, 1) == b"!":
                lead_session(log, message["cpus"])
                if os.getppid() == self._worker:
                    os.close(held)
                    os.close(log)
                    self._variables.set_own(message["set"], message["unset"])
                    sys.argv[1:] = message["job"]
                    self._randomness.renew()
                    show_awaited(message["options"])
                    status = run_as_main(partial(self._workflow.run, message["options"]))
        finally:
            os._exit(status)


def show_awaited(arguments: Sequence[str]) -> None:
    """Make this node see the files for which a Snakemake with these arguments waits at its start.

    This finds the files that exist. Snakemake itself only tests repeatedly whether they exist.
    """
    awaited = _values_of("--wait-for-files", arguments)
    for path in _values_of("--wait-for-files-file", arguments):
        missing_files([path])
        with contextlib.suppress(OSError), open(path, errors="surrogateescape") as lines:
            awaited += [line.strip() for line in lines]
    missing_files(awaited)


def _values_of(option: str, arguments: Sequence[str]) -> list[str]:
    if option not in arguments:
        return []
    values = []
    for word in arguments[arguments.index(option) + 1 :]:
        if word.startswith("--"):
            break
        values.append(word)
    return values


if __name__ == "__main__":
    _link = socket.socket(fileno=int(sys.argv[1]))
    _link.set_inheritable(False)
    try:
        main(_link, int(sys.argv[2]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Snakemake has cleaned up. The rest of Python's shutdown takes longer, and the worker
        # waits.
        os._exit(0)
