"""All checks, one section after the other."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.doctor import filesystem, node
from snakemake_kochi.doctor.allocations import TrialAllocations, TrialWorker
from snakemake_kochi.doctor.peer import PATIENCE, Peer, examine, examine_rename
from snakemake_kochi.doctor.report import INTERRUPTING, Finding, Report, Section, Step, isolated
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, last_lines, modified, random_word
from snakemake_kochi.location import Location, is_found
from snakemake_kochi.locks.settings import (
    find_lock_settings,
    intended_lock_settings,
    read_lock_settings,
)
from snakemake_kochi.paths import MachinePaths, TrialPaths
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue.by_hand import cancel, submit
from snakemake_kochi.queue.views import find_job, reasons, shared_workers
from snakemake_kochi.tickets.ticket import Ticket

_ROOT_OF_ALL = (
    "kochi_root must be on a filesystem that all nodes see. To test whether this one is, type: "
    "kochi doctor --allocations"
)
_PROJECT_OF_ALL = "The project must be on a filesystem that all nodes see."
# Snakemake's own files in a working directory: no snapshot of the sources has them.
_IN_PROJECT = ".snakemake"
_BETWEEN, _COMPUTE = "between nodes", "between compute nodes"
# Seconds for a worker to take a job, and for the job to end; it may have others.
_START_PATIENCE, _END_PATIENCE = 60.0, 20.0
# Seconds for all checks of a node with another one.
_EXAMINATION = 8 * PATIENCE

Found = Generator[Finding]


def diagnose(
    location: Location,
    deadline: float,
    remark: Callable[[str], None],
    queue: str | None = None,
    allocations: TrialAllocations | None = None,
) -> Generator[Finding]:
    """The findings about a machine, and about the project if there is one, as they come.

    `deadline`: seconds for a check to answer before it counts as hanging; checks between nodes have
    more. `remark` prints messages meanwhile. `queue` has a worker on another node to test with.
    `allocations` are requested for such a test if this node is fit. It touches none of the
    directories itself, and leaves nothing in them. The caller must read it to the end, or close it.
    """
    machine, project = location.machine_paths, location.project
    option = "--allocations" if queue is None else f"-q {queue}"
    is_tested = queue is not None or allocations is not None
    has_scheduler = location.machine.has_allocations
    of_all = has_scheduler and not is_tested
    # No one may edit the file of a machine that was found.
    files = () if is_found(location.machine) else location.machine.files
    if_hanging = (
        f"Name a directory with working locks in {next(iter(files), 'kochi.yaml')} (machines: "
        f"{location.machine.name}: lock_dir), or use lock_kind: lease. "
    )

    def measure(
        name: str, directory: Path | None, section: Section, patience: float = 0.0
    ) -> Found:
        return isolated(section, Step(name, directory, patience), deadline, remark)

    def directory_of(paths: TrialPaths, where: Path, advice: str) -> Found:
        said = advice if of_all else ""
        tested = machine.tested
        section = partial(_examine_directory, where=where, paths=paths, advice=said, tested=tested)
        return measure("directory", where, section)

    def between(what: str, queue: str, first: TrialWorker | None) -> Found:
        pair = _Pair(location, what, queue, first, if_hanging)
        return measure(what, None, pair.examine, _START_PATIENCE + 2 * PATIENCE)

    yield from measure("node", None, node.examine)
    is_fit = True
    locks = partial(_examine_locks, location=location, if_hanging=if_hanging)
    for part in (
        directory_of(machine.trial(_nonce()), machine.directory, _ROOT_OF_ALL),
        measure("directory", machine.directory, locks),
    ):
        for finding in part:
            is_fit = is_fit and finding.verdict != "failed"
            yield finding
    if project is not None:
        trial = TrialPaths(project.directory / _IN_PROJECT / f"kochi-doctor-{_nonce()}")
        yield from directory_of(trial, project.directory, _PROJECT_OF_ALL)
    if not is_tested:
        start = "Start a worker on another node (kochi work -q QUEUE -b), then type here"
        told = ("Type", option) if has_scheduler else (start, "-q QUEUE")
        section = partial(_examine_earlier, tested=machine.tested, untested=_untested(*told))
        yield from measure(_BETWEEN, None, section)
    elif not is_fit:
        yield _untested("First repair what failed on this node, then type here", option)
    elif allocations is not None:
        verdicts = set()
        for finding in _examine_allocated(allocations, between):
            verdicts.add(finding.verdict)
            yield finding
        allocations.note(verdicts <= {"ok", "note"})
    else:
        yield from between(_BETWEEN, str(queue), None)


def _untested(first: str, option: str) -> Finding:
    return Finding("note", "not tested", f"{first}: kochi doctor {option}", _BETWEEN)


def _nonce() -> str:
    return random_word()


# ---- one node


def _examine_earlier(report: Report, tested: Path, untested: Finding) -> None:
    """What is known between nodes without a test now."""

    def earlier() -> Finding:
        if not is_there(tested):
            return untested
        day = datetime.fromtimestamp(modified(tested)).date()
        return Finding("ok", f"tested by kochi doctor --allocations on {day}")

    report.check(_BETWEEN, None, earlier)


def _examine_directory(
    report: Report, where: Path, paths: TrialPaths, advice: str, tested: Path
) -> None:
    """All checks of the directory of a machine or of a project.

    The `advice` about other nodes is for one of which these were not `tested`.
    """
    advice = "" if is_there(tested) else advice
    kind = partial(filesystem.examine_filesystem, paths.directory, of_all=advice)
    rename = partial(examine_rename, paths)
    with report.trial(paths):
        report.check("filesystem", where, kind)
        report.check("space", where, partial(filesystem.examine_space, paths.directory))
        report.check("clock", where, partial(filesystem.examine_clock, paths))
        report.check("rename", where, rename, filesystem.RENAME_PATIENCE)
        if paths.directory.parent == where:  # not a project, where nothing else is needed
            report.check("claim", where, partial(filesystem.examine_claim, paths))
            report.check("wake-up", where, partial(filesystem.examine_wakeup, paths))
            report.check("speed", where, partial(filesystem.examine_speed, paths))


def _examine_locks(report: Report, location: Location, if_hanging: str) -> None:
    """All checks of the locks that need no other node."""
    machine, configured = location.machine_paths, location.machine
    wanted = intended_lock_settings(machine, configured.lock_directory, configured.lock_kind)
    examine = partial(filesystem.examine_lock_settings, wanted)
    check = partial(report.check, if_hanging=if_hanging)
    settings = check("lock settings", machine.lock_settings, examine)
    used = wanted
    with contextlib.suppress(DamagedFileError, OSError):
        # The locks in use, whatever the configuration says by now.
        used = read_lock_settings(machine) or wanted
    if settings.verdict == "failed" and not (used.lock_dir or machine.directory).is_dir():
        return
    where, kind = used.paths.directory, used.kind
    examine = partial(filesystem.examine_filesystem, where, for_flock=kind == "flock")
    with report.trial(used.paths.trial(_nonce())) as paths:
        lock = paths.lock("here")
        works = partial(filesystem.examine_lock, lock, kind)
        excludes = partial(filesystem.examine_exclusion, lock, kind)
        check("filesystem of locks", where, examine)
        if check("lock", where, works).verdict == "ok":
            check("lock between processes", where, excludes)


# ---- two nodes


def _examine_allocated(allocations: TrialAllocations, between: Callable[..., Found]) -> Found:
    """The findings of this node with an allocated one, and of that one with a second one.

    The first pair is not enough if login nodes have their filesystems from other servers than
    compute nodes.
    """
    first = allocations.get()
    if isinstance(first, Finding):
        yield replace(first, check=_BETWEEN)
        return
    yield Finding("ok", first.said, check="allocation")
    if this_node().can_see(first.node):
        said = f"not tested: the allocation is on this node ({first.node.host})"
        yield Finding("warning", said, "Type the same command on a login node.", _BETWEEN)
    else:
        yield from between(_BETWEEN, first.queue, None)
    second = allocations.get(not_on=first.nodes)
    if isinstance(second, Finding):
        yield replace(second, check=_COMPUTE)
        return
    yield Finding("ok", second.said, check="allocation")
    if second.node == first.node:
        said = f"not tested: both allocations are on {first.node.host}"
        advice = "Try again when other nodes are free, or in another partition."
        yield Finding("warning", said, advice, _COMPUTE)
    else:
        yield from between(_COMPUTE, second.queue, first)


@dataclass(frozen=True)
class _Pair:
    """The node of the `first` worker, by default this one, and one with a worker of `queue`.

    `what` is the end of
    the names of the checks, `if_hanging` the advice if a lock hangs.
    """

    location: Location
    what: str
    queue: str
    first: TrialWorker | None
    if_hanging: str

    @property
    def machine(self) -> MachinePaths:
        return self.location.machine_paths

    def examine(self, report: Report) -> None:
        if refusal := self._refusal():
            report.check(self.what, None, lambda: refusal)
            return
        machine, what, first = self.machine, self.what, self.first
        # New ones: the other node may still cache the directories of an earlier test.
        nonce, own = _nonce(), _nonce()
        locks = find_lock_settings(machine).paths.trial(nonce)
        with report.trial(locks), self._job(report, self.queue, nonce):
            if first is None:
                examine(report, machine, nonce, what, "this node", self.if_hanging)
                return
            with self._job(report, first.queue, own) as peer:
                report.send(Step(what, None, _EXAMINATION))
                directory = str(machine.directory)
                call = peer.begin("examine", machine.name, directory, nonce, what, first.node.host)
                for finding in call(_EXAMINATION):
                    report.send(Finding(**finding))
                peer.begin("end")

    def _refusal(self) -> Finding | None:
        """The finding if the worker does not exist, or is not on another node."""
        where = "Type" if self.location.machine.has_allocations else "On another node, type"
        start = f"{where}: {self.location.to_start_worker(self.queue)}"
        workers = shared_workers(self.machine, self.queue)
        if not workers:
            return Finding("failed", f"no worker serves queue '{self.queue}'", start)
        if all(worker.is_on_this_node for worker in workers):
            said = f"not tested: only this node serves queue '{self.queue}'"
            return Finding("warning", said, start)
        return None

    @contextlib.contextmanager
    def _job(self, report: Report, queue: str, nonce: str) -> Iterator[Peer]:
        """A job that serves in the trial `nonce`; on leaving, it has a while to end by itself."""
        peer = Peer(self.machine.trial(nonce))
        directory = str(peer.trial.directory)
        # -P: a queue.py in the user's directory must not be imported in place of the library.
        words = (sys.executable, "-P", "-m", "snakemake_kochi.doctor.peer", directory)
        ticket = Ticket("doctor", words, "/")
        with report.trial(peer.trial), contextlib.ExitStack() as stack:
            # No interrupt until the job to cancel is known.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTING)
            try:
                job = submit(self.machine, queue, ticket).job
                stack.callback(self._end, job)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            report.send(f"Job {job} was submitted to queue '{queue}'; waiting for its worker.")
            self._wait_for_greeting(queue, job, peer)
            yield peer
            self._wait_for_end(job)

    def _end(self, job: int) -> None:
        cancel(self.machine, job)
        self._wait_for_end(job)

    def _wait_for_end(self, job: int) -> None:
        wait_until(lambda: find_job(self.machine, job).state == "ended", _END_PATIENCE, 0.02)

    def _wait_for_greeting(self, queue: str, job: int, peer: Peer) -> None:
        """Wait until the job serves. Raises KochiError if it does not begin, or has ended."""

        def state() -> str:
            return find_job(self.machine, job).state

        if not wait_until(lambda: state() != "waiting", _START_PATIENCE, 0.02):
            why = "; ".join(
                reasons(self.machine, find_job(self.machine, job), self.location.to_start_worker)
            )
            raise KochiError(
                f"job {job} still waits in queue '{queue}': {why or 'no worker took it'}",
                "Start a worker for this test only, with a queue of its own.",
            )
        wait_until(lambda: peer.has_greeted or state() == "ended", PATIENCE, 0.02)
        if state() == "ended":
            log = find_job(self.machine, job).log
            why = ": ".join(["its job ended too early", *last_lines(log, 1)])
            raise KochiError(why, f"See its log: kochi show log job {job}")
