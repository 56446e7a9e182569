"""`snakemake_kochi.submit`: jobs by hand from Python, and what becomes of them."""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from snakemake_kochi.backoff import Backoff
from snakemake_kochi.enqueue.experiment_files import is_experiment_file
from snakemake_kochi.enqueue.own_worker import OwnWorker, own_worker
from snakemake_kochi.enqueue.request import Request, prepare, without_worker
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.quantities import format_duration, memory_of
from snakemake_kochi.queue import by_hand
from snakemake_kochi.queue.by_hand import cancel
from snakemake_kochi.queue.views import (
    JobView,
    find_job,
    has_ended,
    obstacles_of,
    reasons,
    shared_workers,
    state_name,
    state_of,
)
from snakemake_kochi.tickets.ticket import Ticket

# Seconds between two looks for the end of a job, which double from the first to the longest.
_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
# Seconds between two looks whether some worker can run it.
_LOOK = 2.0


class NotEndedError(KochiError, TimeoutError):
    """A job has not ended in the time for which somebody wanted to wait."""


class Job:
    """A job that was submitted. It goes on, whatever happens to this object.

    `number` is its number in `kochi show job NUMBER`; `queue`, `machine` and `name` are texts.
    """

    def __init__(self, location: Location, ticket: Ticket, worker: OwnWorker | None) -> None:
        self.number = ticket.job
        self.queue = ticket.queue
        self.machine = ticket.machine
        self.name = ticket.name
        self._location = location
        self._paths = location.machine_paths
        self._worker = worker

    def wait(self, timeout: float | None = None) -> Job:
        """Wait for the end of the job, and return it.

        Warns if no worker can run it, and goes on waiting. Ctrl-C ends the waiting, and not the
        job. Raises NotEndedError, a TimeoutError, after `timeout` seconds, and WorkerError if the
        worker of this process is dead.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause, look, said = _PAUSE, Backoff(), ""
        look.hold(_LOOK)
        try:
            while not has_ended(self._paths, self.number):
                if deadline is not None and time.monotonic() >= deadline:
                    raise NotEndedError(
                        f"job {self.number} has not ended after {format_duration(timeout or 0)}: "
                        f"{self.reason}",
                        "It goes on: call wait() again, or cancel().",
                    )
                if self._worker is not None:
                    self._worker.require_alive()
                if look.is_due:
                    look.hold(_LOOK)
                    why = self._why_stuck()
                    if why and why != said:
                        warnings.warn(f"job {self.number} waits: {why}", stacklevel=2)
                    said = why
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"Job {self.number} goes on. To end it: cancel()")
            raise
        return self

    def cancel(self) -> str:
        """Cancel the job.

        Returns "cancelled" if it waited, "cancelling" if it runs: its worker ends its processes;
        "ended" if it had ended.
        """
        return cancel(self._paths, self.number)

    @property
    def state(self) -> str:
        """In a word: waiting, running, cancelling, succeeded, failed or cancelled."""
        return state_name(self._view)

    @property
    def ok(self) -> bool | None:
        """Whether it succeeded; None as long as it has not ended."""
        result = self._view.result
        return None if result is None else result.ok

    @property
    def exit_status(self) -> int | None:
        """Its exit status; None before its end, and if it ended in another way."""
        result = self._view.result
        return None if result is None else result.exit_status

    @property
    def reason(self) -> str:
        """Why it is in its state: what it waits for, which worker runs it, how it ended."""
        return self._reason(self._view)

    @property
    def stdout(self) -> str:
        """What it has printed so far, to standard output and standard error."""
        return self._view.output.decode("utf-8", "replace")

    @property
    def log(self) -> Path:
        """The file with its output. Some time after the end of the job it is folded with others,
        and the file is gone: then `stdout` has it."""
        return self._view.log

    @property
    def _view(self) -> JobView:
        return find_job(self._paths, self.number)

    def _reason(self, view: JobView) -> str:
        is_to_run = self._worker is not None and self._worker.is_alive
        if is_to_run and view.state == "waiting" and not shared_workers(self._paths, self.queue):
            return "the worker of this process is about to begin"
        return "; ".join(reasons(self._paths, view, self._location.to_start_worker))

    def _why_stuck(self) -> str:
        """Why no worker can run it; "" if one can, or runs it."""
        view = self._view
        # The worker of this process may just start.
        if self._worker is not None or view.state != "waiting" or view.ticket is None:
            return ""
        workers = shared_workers(self._paths, self.queue)
        if None in obstacles_of(workers, view.ticket.resources).values():
            return ""
        return "; ".join(reasons(self._paths, view, self._location.to_start_worker))

    def __repr__(self) -> str:
        view = self._view
        why = "" if view.result is not None else f": {self._reason(view)}"
        return f"<Job {self.number} {self.name!r} in queue {self.queue!r}, {state_of(view)}{why}>"


def submit(
    command: str | Sequence[str],
    *,
    queue: str | None = None,
    name: str | None = None,
    machine: str | None = None,
    cores: int | None = None,
    memory: str | int | None = None,
    gpus: int | None = None,
    shared: bool = False,
    recipes: Sequence[str] = (),
    copy: bool = False,
    git_remote: str | None = None,
) -> Job:
    """Submit a job by hand, as `kochi enqueue` does. Returns at once.

    `command` is a line for bash, or a list of words: a program and its arguments, or "FILE.yaml"
    and "NAME=VALUE" to build an experiment and run it once. It runs in the current directory.

    Without `queue` (for an experiment: without its default_queue), a worker on this computer runs
    it, which ends with this process. With `queue`, a worker that serves this queue does.

    The job has its worker to itself, unless `shared` or one of `cores`, `memory` ("2G", or MiB) and
    `gpus` is given. `recipes` are installed ones, as "DEPENDENCY:RECIPE". `copy` runs it in a copy
    of the repository as it is now, and `git_remote`, which Kochi
    fetched it from, does the same.

    Raises KochiError for what cannot be; then nothing is submitted. Warns if no worker serves the
    queue.
    """
    request = Request(
        words=_words(command),
        queue=queue,
        name=name,
        copy=copy,
        git_remote=git_remote,
        dependencies=(recipes,) if isinstance(recipes, str) else tuple(recipes),
        shared=shared,
        cores=cores,
        memory=_mebibytes(memory),
        gpus=gpus,
    )
    location = find_location(machine, asks=True)
    location.require_here()
    worker = None
    if queue is None and not request.is_experiment:
        worker = own_worker(location)  # refused before anything is frozen
    prepared = prepare(location, request)
    for remark in prepared.remarks:
        warnings.warn(remark, stacklevel=2)
    if prepared.queue is None:
        worker = worker or own_worker(location)
        worker.check(prepared.ticket.resources)
    paths = location.prepare_machine()
    if worker is not None:
        worker.start()
    chosen = prepared.queue or (worker.queue if worker is not None else "")
    ticket = by_hand.submit(paths, chosen, prepared.ticket)
    if worker is None and (said := without_worker(location, chosen)):
        warnings.warn(said, stacklevel=2)
    return Job(location, ticket, worker)


def _words(command: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(command, str):
        words = tuple(map(str, command))
        if not words:
            raise KochiError("a command was expected: a line for bash, or a list of words")
        return words
    try:
        first, *rest = shlex.split(command) or [""]
    except ValueError:
        first, rest = "", []
    if not command.strip():
        raise KochiError("a command was expected: a line for bash, or a list of words")
    if is_experiment_file(first):
        raise KochiError(
            f"{command!r} would be a line for bash, and {first} is an experiment",
            f"For a single run of it: submit({[first, *rest]!r})",
        )
    return ("bash", "-c", command)


def _mebibytes(memory: str | int | None) -> int | None:
    if not isinstance(memory, str):
        return memory
    try:
        return memory_of(memory)
    except ValueError as error:
        raise KochiError(f"memory {memory!r}: {error}") from None
