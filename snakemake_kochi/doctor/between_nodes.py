"""The same with a second node: a job of ours runs there and answers through files."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.doctor.files import (
    judge_sightings,
    sightings_from,
    write_version,
    write_versions,
)
from snakemake_kochi.doctor.filesystem import judge_skew
from snakemake_kochi.doctor.finding import Outcome
from snakemake_kochi.doctor.locks import contend
from snakemake_kochi.doctor.messages import PATIENCE, hear, tell
from snakemake_kochi.doctor.reporter import Reporter
from snakemake_kochi.errors import KochiError
from snakemake_kochi.locks.lock import advice, hold
from snakemake_kochi.locks.settings import LockSettings, find_lock_settings
from snakemake_kochi.paths import MachinePaths, TrialPaths
from snakemake_kochi.queue import Queue, Ticket, cancel, find_job, reasons, shared_workers
from snakemake_kochi.queue.processes import Node, this_node

_ROUNDS = 5
# Seconds for a worker to take the job; it may have others.
START_PATIENCE = 60.0
END_PATIENCE = 20.0
_SLOW = 2.0  # seconds
_LOG_BYTES = 4000


@dataclass(frozen=True)
class Pair:
    """Which nodes are meant: `what` is the end of the names of the checks, `here` what this one is
    called. `controller`: whose tickets the worker of the queue claims, None for everybody's."""

    queue: str
    controller: str | None = None
    what: str = "between nodes"
    here: str = "this node"


def examine_between_nodes(
    reporter: Reporter, machine: MachinePaths, pair: Pair, nonce: str
) -> None:
    """With a worker of a queue, if it is on another node."""
    queue = pair.queue
    reporter.begin(pair.what, None, patience=2 * PATIENCE)
    workers = shared_workers(machine, queue, pair.controller)
    start = f"On another node, type: kochi work -q {queue} -b"
    if not workers:
        reporter.found(Outcome("failed", f"no worker serves queue '{queue}'", start))
        return
    if all(worker.is_on_this_node for worker in workers):
        said = f"not tested: queue '{queue}' is served on this very node only"
        reporter.found(Outcome("warning", said, start))
        return
    settings = find_lock_settings(machine)
    with (
        reporter.trial(machine.trial(nonce)) as trial,
        reporter.trial(settings.paths.trial(nonce)) as locks,
    ):
        reporter.begin(pair.what, None, patience=2 * PATIENCE)
        _Session(reporter, machine, pair, settings, trial, locks).run()


class _Session:
    def __init__(
        self,
        reporter: Reporter,
        machine: MachinePaths,
        pair: Pair,
        settings: LockSettings,
        trial: TrialPaths,
        locks: TrialPaths,
    ) -> None:
        self._reporter = reporter
        self._machine = machine
        self._pair = pair
        self._queue = pair.queue
        self._settings = settings
        self._trial = trial
        self._ours, self._theirs = locks.lock("here"), locks.lock("there")
        self._job = -1
        self._host = ""

    def run(self) -> None:
        kind = self._settings.kind
        with self._peer():
            with hold(self._ours, kind, patience=0):
                self._submit()
                answer = self._hello()
            if answer is not None:
                self._check("lock", self._settings.paths.directory, lambda: self._locks(answer))
                self._check("clock", None, self._clock)
                self._check("rename", self._machine.directory, self._rename)

    def _check(self, what: str, directory: Path | None, measure: Callable[[], Outcome]) -> None:
        # The answer to a failed one would be taken for that to the next.
        check = f"{what} {self._pair.what}"
        self._reporter.begin(check, directory, patience=2 * PATIENCE)
        self._reporter.found(measure())

    @contextlib.contextmanager
    def _peer(self) -> Iterator[None]:
        """Whatever happens, its job ends."""
        try:
            yield
            if self._job >= 0:
                self._reporter.begin("end of the test", None, patience=2 * END_PATIENCE)
                tell(self._trial, "end")
                self._wait_for_end()
        finally:
            if self._job >= 0:
                cancel(self._machine, self._job)
                self._wait_for_end()

    def _submit(self) -> None:
        tell(
            self._trial,
            "plan",
            kind=self._settings.kind,
            held_there=str(self._ours),
            held_here=str(self._theirs),
            rounds=_ROUNDS,
        )
        module = "snakemake_kochi.doctor.peer"
        command = (sys.executable, "-P", "-m", module, str(self._trial.directory))
        ticket = Ticket(
            name="doctor", command=command, directory="/", controller=self._pair.controller
        )
        (given,) = Queue(self._machine, self._queue).submit([ticket])
        self._job = given.job
        self._reporter.remark(
            f"Job {self._job} was submitted to queue '{self._queue}'; waiting for its worker."
        )
        self._reporter.begin(self._pair.what, None, patience=START_PATIENCE + 2 * PATIENCE)

    def _hello(self) -> str | None:
        """Whether it got the lock that we hold; None where it is no other node."""
        deadline = time.monotonic() + START_PATIENCE

        def look() -> None:
            view = find_job(self._machine, self._job)
            if view.state == "waiting" and time.monotonic() > deadline:
                why = "; ".join(reasons(self._machine, view)) or "nobody took it"
                raise KochiError(
                    f"job {self._job} still waits in queue '{self._queue}': {why}",
                    "Start a worker for this test only, with a queue of its own.",
                )
            if view.state == "ended":
                raise KochiError(f"its job ended too early: {self._last_words()}")

        hello = hear(self._trial, "hello", START_PATIENCE + PATIENCE, look)
        node = Node.from_dict(hello["node"])
        self._host = node.host
        if this_node().can_see(node):
            said = f"not tested: a worker on this very node ({node.host}) took the job"
            self._reporter.found(Outcome("warning", said, "End it, or use another queue."))
            return None
        self._reporter.found(Outcome("ok", f"a worker on {node.host} answers"))
        return str(hello["answer"])

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            data = self._machine.job(self._job).log.read_bytes()[-_LOG_BYTES:]
            if lines := data.decode(errors="replace").strip().splitlines():
                return lines[-1]
        return f"see its log: kochi show log job {self._job}"

    def _hear(self, name: str) -> dict[str, object]:
        return hear(self._trial, name)

    def _locks(self, answer: str) -> Outcome:
        kind, host, here = self._settings.kind, self._host, self._pair.here
        self._hear("held")
        ours = contend(self._theirs, kind)
        tell(self._trial, "tried")
        admitted = []
        if answer == "got":
            admitted.append(f"{host} got it while {here} held it")
        if ours == "got":
            admitted.append(f"{here} got it while {host} held it")
        if admitted:
            # Said at once, for otherwise the next use of the machine would be refused.
            then = f"After that, with no worker or run left: rm {self._machine.lock_settings}"
            said = f"{kind}: {' and '.join(admitted)}"
            return Outcome("failed", said, f"{advice(kind)} {then}")
        return Outcome("ok", f"{kind}: {host} and {here} keep each other out")

    def _clock(self) -> Outcome:
        trips = []
        for number in range(_ROUNDS):
            sent = time.time()
            tell(self._trial, f"ping-{number}")
            answered = float(str(self._hear(f"pong-{number}")["time"]))
            received = time.time()
            trips.append((received - sent, answered - (sent + received) / 2))
        times = [trip for trip, _ in trips]
        self._visibility(min(times), max(times))
        shortest, skew = min(trips)
        self._reporter.begin(f"clock {self._pair.what}", None)
        return judge_skew(skew, shortest / 2, f"the clock of {self._host}", self._pair.here)

    def _visibility(self, least: float, most: float) -> None:
        self._reporter.begin(f"visibility {self._pair.what}", self._machine.directory)
        said = f"a file and the answer to it took {least:.3f} to {most:.3f} s there and back"
        advice = f"Give Snakemake --latency-wait {int(most) + 1} or more." if most > _SLOW else ""
        self._reporter.found(Outcome("note" if advice else "ok", said, advice))

    def _rename(self) -> Outcome:
        document = self._trial.document
        write_version(document, 0)
        tell(self._trial, "write")
        self._hear("reading")
        written = write_versions(document)
        seen = sightings_from(self._hear("read"))
        return judge_sightings(seen, written, self._host)

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + END_PATIENCE
        while time.monotonic() < deadline:
            if find_job(self._machine, self._job).state == "ended":
                return
            time.sleep(0.02)
