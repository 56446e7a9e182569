"""A zygote: the server of one workflow, which it has parsed; a copy runs one job of it.

    zygote.py CPUS ARGUMENT... SOCKET SUPERVISOR

It starts in the directory of the workflow, with the arguments of Snakemake that all jobs have in
common. CPUS are those of the first job.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from errno import ESTALE
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from snakemake_kochi.parent_death import children
from snakemake_kochi.worker.copies import Variables, run_as_main
from snakemake_kochi.worker.job_process import missing_files
from snakemake_kochi.worker.parse_state import (
    Randomness,
    Reads,
    keep_temporary_directories,
)
from snakemake_kochi.worker.server import Server
from snakemake_kochi.worker.snakemake_internals import (
    ParsedWorkflow,
    UnfitError,
    parse,
    pose_as_snakemake,
)
from snakemake_kochi.worker.supervisor import Message

# All of them are checked before each job, which takes a microsecond or two for each, or more on a
# network filesystem.
_MOST_READS = 2000
_NOT_PARSED = "its parse failed"
_THREAD_PATIENCE = 1.0  # seconds until a thread that has ended is not counted any more


class ToldToEnd(BaseException):
    """SIGTERM, sent by the worker or by a scheduler that ends the allocation.

    The zygote ends, and Snakemake removes its temporary directory. No handler for Exception catches
    it.
    """


def _tell_to_end(number: int, frame: FrameType | None) -> NoReturn:
    raise ToldToEnd


def main(arguments: list[str]) -> None:
    server = Server(arguments)
    try:
        signal.signal(signal.SIGTERM, _tell_to_end)
        why = _parse_and_serve(server, arguments[0], arguments[1:-2])
    except ToldToEnd:
        return
    except UnfitError as error:
        why = error.message
    except (Exception, SystemExit):  # Snakemake itself fails at some errors of workflows
        traceback.print_exc()
        why = _NOT_PARSED
    if why:
        server.say(failed=why)


def _parse_and_serve(server: Server, cpus: str, arguments: list[str]) -> str:
    """Parse the workflow and serve jobs; return why that is not possible, or ""."""
    cores = ("--cores", cpus)
    pose_as_snakemake([*arguments, *cores])
    variables = Variables()
    randomness = Randomness()
    reads = Reads([".snakemake"])
    descriptors = _descriptors()
    here, identity = os.getcwd(), os.stat(".")

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
        if len(reads) > _MOST_READS:
            raise UnfitError(f"it reads more than {_MOST_READS} files and directories")
        keep_temporary_directories()

        def refuse(request: Message) -> None:
            is_here = False
            with suppress(OSError):
                is_here = os.path.samestat(os.stat(here), identity)
            if changed := (reads.changed() if is_here else here):
                raise OSError(ESTALE, f"{changed} has changed since it was read")
            variables.require_unread(request["environment"], "its parse")

        def live(job: Any, request: Message) -> int:
            variables.adopt(request["environment"])
            sys.argv[1:] = request["command"]
            randomness.renew()
            show_awaited(request["options"])
            return run_as_main(partial(workflow.run, request["options"]))

        sys.stdout.flush()  # or each copy would write it again
        sys.stderr.flush()
        server.serve(live, refuse, reads_cpus=workflow.reads_cores)

    return "" if parse(arguments, cores, begin, serve) else _NOT_PARSED


def _descriptors() -> set[tuple[int, str]]:
    """The open files, except devices."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return {(number, path) for number, path in found if not path.startswith("/dev/")}


def _require_nothing_shared(before: set[tuple[int, str]], randomness: Randomness) -> None:
    """Check that copies share nothing that each job would have for itself in its own process.

    Raises UnfitError.
    """
    for _, path in _descriptors() - before:
        raise UnfitError(f"its parse opens {path}, and does not close it")
    if children(os.getpid()):
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
    until = time.monotonic() + _THREAD_PATIENCE
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def _import_if_safe(names: Sequence[str]) -> None:
    """Import the modules that exist and start no threads; a copy tries each module first."""
    for name in names:
        if name not in sys.modules:
            if (pid := os.fork()) == 0:
                _try_import(name)
            if os.waitpid(pid, 0)[1] == 0:
                importlib.import_module(name)
    _is_safe_to_fork()  # ends their threads, with which a server would have to fork twice


def _try_import(name: str) -> NoReturn:
    is_safe = False
    try:
        importlib.import_module(name)
        is_safe = _is_safe_to_fork()
    finally:
        os._exit(0 if is_safe else 1)


def show_awaited(arguments: Sequence[str]) -> None:
    """Make this node see the files for which a Snakemake with these arguments waits at its start.

    This finds the files that exist. Snakemake itself only tests repeatedly whether they exist.
    """
    awaited = _values_of("--wait-for-files", arguments)
    for path in _values_of("--wait-for-files-file", arguments):
        missing_files([path])
        with suppress(OSError), open(path, errors="surrogateescape") as lines:
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
    try:
        main(sys.argv[1:])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Snakemake has cleaned up. The rest of Python's shutdown takes longer.
        os._exit(0)
