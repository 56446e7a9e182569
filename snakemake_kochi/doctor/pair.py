"""Two nodes that examine their shared filesystem, each by a process; on another node it is a job.

They communicate through files, each written once under a name that both know. `python -m
snakemake_kochi.doctor.pair ROLE PAIR` is such a job: `answer`, or `examine` for a pair that this
node is not part of.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.doctor.checks import (
    INTERRUPTING,
    Check,
    Finding,
    at_end,
    failed,
    isolated,
    run,
    trial,
)
from snakemake_kochi.doctor.filesystem import (
    Sightings,
    judge_sightings,
    judge_skew,
    read_versions,
    write_version,
    write_versions,
)
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import last_lines, read_json, to_json, write_atomically
from snakemake_kochi.locks.lock import advice, hold
from snakemake_kochi.locks.probe import contender
from snakemake_kochi.locks.settings import LockSettings, find_lock_settings
from snakemake_kochi.paths import MachinePaths, TrialPaths
from snakemake_kochi.processes import Node, this_node
from snakemake_kochi.queue import Queue, Ticket, cancel, find_job, reasons, shared_workers

_VERSION = 1
# Seconds. NFS may notice a new file only after a minute, with the default of acdirmax.
_PATIENCE = 90.0
# Seconds for a worker to take the job, and for the job to end; it may have others.
_START_PATIENCE, _END_PATIENCE = 60.0, 20.0
# Seconds within which another process sees that a lock is free.
_LOCK_PATIENCE = 0.3
_LONGEST_PAUSE = 0.05  # seconds
_ROUNDS = 5
_SLOW = 2.0  # seconds for a round trip
_FAULT = "fault"


@dataclass(frozen=True)
class Pair:
    """A node that examines, called `here`, and another one, on which the worker of `queue` runs.

    The worker takes tickets of the `controller` (None: of all controllers), and its `job` answers.
    `what` is the end of the names of the checks; `machine` is a directory.
    """

    name: str
    machine: str
    nonce: str
    queue: str
    controller: str | None = None
    what: str = "between nodes"
    here: str = "this node"
    job: int = -1

    @property
    def paths(self) -> MachinePaths:
        return MachinePaths(self.name, Path(self.machine))

    @property
    def trial(self) -> TrialPaths:
        return self.paths.trial(self.nonce)

    def locks(self) -> tuple[LockSettings, Path, Path]:
        """The settings, with the lock of the examining node and that of the other one."""
        settings = find_lock_settings(self.paths)
        trial = settings.paths.trial(self.nonce)
        return settings, trial.lock("here"), trial.lock("there")


class SilenceError(KochiError):
    """The other side did not send the expected message, or the conversation is over."""


def tell(trial: TrialPaths, name: str, **content: Any) -> None:
    write_atomically(trial.message(name), to_json({"version": _VERSION, **content}))


def hear(
    trial: TrialPaths,
    name: str,
    patience: float = _PATIENCE,
    problem: Callable[[], KochiError | None] = lambda: None,
    fault: str = _FAULT,
) -> dict[str, Any]:
    """Wait for a message, as long as there is no `problem`, and no message about a `fault`.

    Raises SilenceError, the problem, and KochiError with the fault that the other side has met.
    """
    heard: list[dict[str, Any]] = []

    def is_told() -> bool:
        found = problem()
        # Listed, as in the queue: NFS remembers for longer that a single name did not exist.
        try:
            names = os.listdir(trial.directory)
        except FileNotFoundError:
            raise SilenceError(
                f"directory {trial.directory} does not exist, or no longer",
                "Is KOCHI_ROOT the same directory on both nodes?",
            ) from None
        for each in (name, fault):
            if trial.message(each).name in names:
                message = read_json(trial.message(each), _VERSION)
                if each == fault:
                    raise KochiError(str(message["message"]), message["hint"])
                heard.append({key: message[key] for key in message if key != "version"})
                return True
        if found is not None:
            raise found
        return False

    if not wait_until(is_told, patience, 0.001, _LONGEST_PAUSE):
        raise SilenceError(f"no answer from the other node within {patience:g} seconds")
    return heard[0]


# ---- this node


def examine(
    pair: Pair, remark: Callable[[str], None], patience: float, examiner: str | None = None
) -> Generator[Finding]:
    """Examine with the worker of the pair's queue, if it is on another node.

    `examiner`: the queue of a worker, for the same controller, that examines instead of this node.
    `patience`: seconds to make directories. It ends the jobs, and removes all files of the test.
    """
    try:
        if refusal := isolated(partial(_refusal, pair), _PATIENCE):
            yield replace(refusal, check=pair.what)
            return
        locks = isolated(lambda: pair.locks()[1].parent, _PATIENCE)
        with (
            trial(pair.trial, patience, remark),
            trial(TrialPaths(locks), patience, remark),
            _job(pair, pair.queue, "answer", remark) as pair,
        ):
            if examiner is None:
                yield from _converse(pair)
            else:
                with _job(pair, examiner, "examine", remark) as other:
                    yield from _told(pair, examiner, other.job)
    except KochiError as error:
        yield failed(pair.what, None, error)


def _refusal(pair: Pair) -> Finding | None:
    """The finding if the worker does not exist, or is not on another node."""
    start = f"On another node, type: kochi work -q {pair.queue} -b"
    workers = shared_workers(pair.paths, pair.queue, pair.controller)
    if not workers:
        return Finding("failed", f"no worker serves queue '{pair.queue}'", start)
    if all(worker.is_on_this_node for worker in workers):
        said = f"not tested: only this node serves queue '{pair.queue}'"
        return Finding("warning", said, start)
    return None


@contextlib.contextmanager
def _job(pair: Pair, queue: str, role: str, remark: Callable[[str], None]) -> Iterator[Pair]:
    """Have a worker of the queue play a role; yields the pair with its job, which is ended."""
    # -P: a queue.py in the user's directory must not be imported in place of the library.
    words = (sys.executable, "-P", "-m", "snakemake_kochi.doctor.pair", role)
    ticket = Ticket("doctor", (*words, json.dumps(asdict(pair))), "/", controller=pair.controller)
    # No interrupt until the job to cancel is known.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTING)
    try:
        submit = partial(Queue(pair.paths, queue).submit, [ticket])
        job = isolated(lambda: submit()[0].job, _PATIENCE)
        with at_end(partial(_end, pair.paths, job), _PATIENCE):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            remark(f"Job {job} was submitted to queue '{queue}'; waiting for its worker.")
            yield replace(pair, job=job)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(machine: MachinePaths, job: int) -> None:
    cancel(machine, job)
    _wait_for_end(machine, job)


def _wait_for_end(machine: MachinePaths, job: int) -> None:
    wait_until(lambda: find_job(machine, job).state == "ended", _END_PATIENCE, 0.02)


def _told(pair: Pair, queue: str, job: int) -> Generator[Finding]:
    """The findings of the examining job. Raises KochiError if it fails."""
    problem = _problem_of(pair.paths, queue, job)
    patience = _START_PATIENCE + 3 * _PATIENCE
    for number in count():
        # A fault comes from the other node, and is one of the findings.
        heard = partial(hear, pair.trial, f"finding-{number}", patience, problem, fault="")
        if not (finding := isolated(heard, patience + _PATIENCE)):
            return
        yield Finding(**finding)


def _problem_of(machine: MachinePaths, queue: str, job: int) -> Callable[[], KochiError | None]:
    """A function that returns the reason why a job is useless.

    The job waits for too long, or has ended.
    """
    deadline = time.monotonic() + _START_PATIENCE

    def problem() -> KochiError | None:
        view = find_job(machine, job)
        if view.state == "waiting" and time.monotonic() > deadline:
            why = "; ".join(reasons(machine, view)) or "no worker took it"
            return KochiError(
                f"job {job} still waits in queue '{queue}': {why}",
                "Start a worker for this test only, with a queue of its own.",
            )
        if view.state == "ended":
            why = ": ".join(["its job ended too early", *last_lines(view.log, 1)])
            return KochiError(why, f"See its log: kochi show log job {job}")
        return None

    return problem


# ---- the examining node


def _converse(pair: Pair) -> Generator[Finding]:
    try:
        hello = isolated(partial(_greet, pair), _START_PATIENCE + 2 * _PATIENCE)
    except KochiError as error:
        yield failed(pair.what, None, error)
        return
    node = Node.from_dict(hello["node"])
    if this_node().can_see(node):
        said = f"not tested: a worker on this node ({node.host}) took the job"
        yield Finding("warning", said, "End it, or use another queue.", pair.what)
        return
    yield Finding("ok", f"a worker on {node.host} answers", check=pair.what)
    machine = pair.paths.directory
    lock = partial(_lock, pair, node.host, hello["is_admitted"])
    checks = [
        Check("lock", hello["locks"], lock),
        Check("visibility", machine, partial(_visibility, pair)),
        Check("clock", None, partial(_clock, pair, node.host)),
        Check("rename", machine, partial(_rename_with, pair, node.host)),
    ]
    # After a failed check, the next one would read its late answer.
    named = [each._replace(name=f"{each.name} {pair.what}", is_needed=True) for each in checks]
    yield from run(named, 2 * _PATIENCE)


def _greet(pair: Pair) -> dict[str, Any]:
    settings, ours, _ = pair.locks()
    problem = _problem_of(pair.paths, pair.queue, pair.job)
    with hold(ours, settings.kind, patience=0):
        tell(pair.trial, "begin")
        hello = hear(pair.trial, "hello", _START_PATIENCE + _PATIENCE, problem)
    return {**hello, "locks": settings.paths.directory}


def _lock(pair: Pair, host: str, they_got_it: bool) -> Finding:
    settings, _, theirs = pair.locks()
    kind, here = settings.kind, pair.here
    with contender(theirs, kind, _LOCK_PATIENCE) as contend:
        hear(pair.trial, "held")
        we_got_it = contend()
    tell(pair.trial, "tried")
    admitted = [f"{host} got it while {here} held it"] * they_got_it
    admitted += [f"{here} got it while {host} held it"] * we_got_it
    if admitted:
        # Reported at once: otherwise the next use of the machine would be refused.
        file = settings.machine.lock_settings
        then = f"{advice(kind)} After that, with no worker or run left: rm {file}"
        return Finding("failed", f"{kind}: {' and '.join(admitted)}", then)
    return Finding("ok", f"{kind}: {host} and {here} keep each other out")


def _visibility(pair: Pair) -> Finding:
    trips = [trip for trip, _ in _round_trips(pair, 0)]
    said = f"a file and the answer to it took {min(trips):.3f} to {max(trips):.3f} s there and back"
    if max(trips) <= _SLOW:
        return Finding("ok", said)
    return Finding("note", said, f"Give Snakemake --latency-wait {int(max(trips)) + 1} or more.")


def _clock(pair: Pair, host: str) -> Finding:
    # The duration of the answer is known only up to half of a round trip.
    shortest, skew = min(_round_trips(pair, _ROUNDS))
    return judge_skew(skew, shortest / 2, f"the clock of {host}", pair.here)


def _round_trips(pair: Pair, first: int) -> Iterator[tuple[float, float]]:
    """The seconds of each round trip, and by how many the other clock is ahead."""
    for number in range(first, first + _ROUNDS):
        sent = time.time()
        tell(pair.trial, f"ping-{number}")
        answered = float(hear(pair.trial, f"pong-{number}")["time"])
        received = time.time()
        yield received - sent, answered - (sent + received) / 2


def _rename_with(pair: Pair, host: str) -> Finding:
    write_version(pair.trial.document, 0)
    tell(pair.trial, "write")
    outcome = _rename(pair.trial, host)
    tell(pair.trial, "end")
    _wait_for_end(pair.paths, pair.job)
    return outcome


def examine_rename(trial: TrialPaths) -> Finding:
    """Examine rename with another process of this node."""
    write_version(trial.document, 0)
    if os.fork() == 0:
        try:
            _read(trial)
        finally:
            os._exit(0)
    return _rename(trial, "another process", has_one_clock=True)


def _rename(trial: TrialPaths, whose: str, has_one_clock: bool = False) -> Finding:
    hear(trial, "reading")
    written = write_versions(trial.document)
    seen = Sightings(**hear(trial, "read"))
    outcome = judge_sightings(seen, written, whose)
    if outcome.verdict != "ok" or not has_one_clock:
        return outcome
    lag = f"; seen after {1000 * seen.lag:.0f} ms at the latest"
    return replace(outcome, measured=outcome.measured + lag)


# ---- the answering node


def _answer(pair: Pair) -> None:
    """Answer the other node; ends by itself when no message comes any more."""
    settings, held_there, held_here = pair.locks()
    kind, trial = settings.kind, pair.trial
    with contender(held_there, kind, _LOCK_PATIENCE) as contend:
        hear(trial, "begin")
        is_admitted = contend()
    tell(trial, "hello", node=asdict(this_node()), is_admitted=is_admitted)
    with hold(held_here, kind, patience=0):
        tell(trial, "held")
        hear(trial, "tried")
    for number in range(2 * _ROUNDS):
        hear(trial, f"ping-{number}")
        tell(trial, f"pong-{number}", time=time.time())
    hear(trial, "write")
    _read(trial)
    hear(trial, "end")


def _read(trial: TrialPaths) -> None:
    tell(trial, "reading")
    tell(trial, "read", **asdict(read_versions(trial.document)))


def main(role: str, argument: str) -> None:
    """The main program of a job; it exits with a message when it fails."""
    pair = Pair(**json.loads(argument))
    if role == "examine":
        for number, finding in enumerate(chain(map(asdict, _converse(pair)), [{}])):
            tell(pair.trial, f"finding-{number}", **finding)
        return
    try:
        _answer(pair)
    except SilenceError as error:
        sys.exit(str(error))
    except (KochiError, OSError) as error:
        message, hint = str(error), None
        if isinstance(error, KochiError):
            message, hint = error.message, error.hint
        tell(pair.trial, _FAULT, message=f"on {this_node().host}: {message}", hint=hint)
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
