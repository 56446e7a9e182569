"""Earlier runs in a directory, and their jobs that this run takes over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from typing import Any

from snakemake_kochi.base import clock, files
from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.ends import CANCELLED, SUCCESS, details_of
from snakemake_kochi.executor.tickets import single_jobs
from snakemake_kochi.files import safe_name, times_and_sizes
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import LaunchPaths, MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, is_gone
from snakemake_kochi.queue.runs import RunView, facts_of_run, refusal
from snakemake_kochi.tickets.hand import interrupt, withdraw
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import Layout, Name
from snakemake_kochi.tickets.run import OWN, End, Job, Run
from snakemake_kochi.tickets.ticket import Ticket, ticket_in
from snakemake_kochi.tickets.watching import INTERVAL, REQUEUED, Pulse, facts_in

Key = tuple[int, int]  # of a job: run and number
_PAUSE = 0.5  # seconds between two looks at an earlier run


class Adopted:
    """What earlier runs left: jobs that run, and successes of which Snakemake may not know.

    What waits is cancelled: this run submits it again, if it needs it, to workers that it has.
    """

    def __init__(self, layout: Layout, jobs: Iterable[Job]) -> None:
        """`jobs`: those that have not ended. Raises OSError."""
        self._layout = layout
        self._open = {(job.run, job.number): job for job in jobs}
        self._by_identity = {job.key: key for key, job in self._open.items()}
        self._succeeded: dict[str, End] = {}
        self._writers: dict[str, set[Key]] = defaultdict(set)
        self._taken: set[Key] = set()
        self._unwanted: set[Key] = set()
        self.unread = self.cancelled = 0  # for people: ends that nobody had read
        self.tick()
        for queue in self._queues():
            for name in Name.parse_all(listing(layout.queue(queue).running)):
                if name.key in self._open:
                    self._examine(f"{layout.queue(queue).running}/{name}", name)

    def _examine(self, path: str, name: Name) -> None:
        with suppress(FileNotFoundError, KochiError):
            ticket = ticket_in(files.read(path), path)
            for output in ticket.outputs:
                self._writers[output].add(name.key)
            if ticket.identity is None:  # nobody can take it
                self._unwanted.add(name.key)

    @property
    def is_empty(self) -> bool:
        return not (self._open or self._succeeded)

    @property
    def running(self) -> list[Key]:
        """Those that nobody wants to end, and that no job of this run is."""
        return sorted(self._open.keys() - self._taken - self._unwanted)

    def _queues(self) -> dict[str, set[Key]]:
        queues: dict[str, set[Key]] = defaultdict(set)
        for key, job in list(self._open.items()):
            queues[job.queue].add(key)
        return queues

    def tick(self) -> None:
        """Cancel what waits, also again, and what is not wanted. Raises OSError."""
        for queue, keys in self._queues().items():
            withdraw(self._layout, queue, keys)
            if unwanted := keys & self._unwanted:
                interrupt(self._layout, queue, unwanted)

    def note(self, end: End) -> None:
        """Note an end of an earlier run's job."""
        self._open.pop(end.name.key, None)
        if end.name.state == SUCCESS:
            self._succeeded[end.key] = end
        is_new = "ended" not in end.line  # otherwise it is from a journal
        self.unread += is_new and end.name.state == SUCCESS
        self.cancelled += is_new and end.name.state == CANCELLED

    def take(self, ticket: Ticket) -> Job | End | None:
        """The same job, which runs, or its success if its outputs have not changed since."""
        identity = ticket.identity or ""
        key = self._by_identity.get(identity)
        if key in self._open and key not in self._taken | self._unwanted:
            self._taken.add(key)
            return self._open[key]
        end = self._succeeded.get(identity)
        if end is not None and not self._in_the_way(ticket):
            outputs = details_of(end).get("outputs")
            if outputs and times_and_sizes(ticket.directory, ticket.outputs) == outputs:
                return self._succeeded.pop(identity)
        return None

    def _in_the_way(self, ticket: Ticket) -> set[Key]:
        writers = set[Key]().union(*(self._writers.get(path, ()) for path in ticket.outputs))
        return (writers & self._open.keys()) - self._taken

    def clear_way_for(self, ticket: Ticket) -> set[Key]:
        """End the jobs that write the same files, before which it must not start; these."""
        keys = self._in_the_way(ticket)
        self._unwanted |= keys
        return keys

    def have_ended(self, keys: set[Key]) -> bool:
        return keys.isdisjoint(self._open)


def allocations_of(layout: Layout, run: int) -> str | None:
    """The name of a run's allocations; None if it has none, or if that was not kept."""
    facts = (facts_in(layout.run(run).facts) or {}).get("facts") or {}
    if "allocations" not in facts:
        return None
    label, word = facts["allocations"]
    return f"kochi-{safe_name(label).lstrip('.-') or 'run'}-{run}-{word}"


def is_over(machine: MachinePaths, facts: Any) -> bool:
    """As `is_gone`; a program may also call Snakemake several times, one run after another, and of
    a launched run its supervisor has told the end, on whatever node."""
    own = facts_of_run(None, None)
    is_own = facts is not None and all(facts.get(key) == own[key] for key in ("node", "process"))
    return is_own or is_gone(facts) or _has_told_end(machine, facts)


def _has_told_end(machine: MachinePaths, facts: Any) -> bool:
    with suppress(OSError, LookupError, TypeError, ValueError):
        if "outputs" in facts:  # a run's, and not a worker's
            whose = Node.from_dict(facts["node"]), ProcessIdentity.from_dict(facts["process"])
            launch = _launch_of(machine, *whose)
            return launch is not None and launch.end in launch.directory.iterdir()
    return False


@cache
def _launch_of(machine: MachinePaths, node: Node, process: ProcessIdentity) -> LaunchPaths | None:
    from snakemake_kochi.detached.launches import launch_of

    return launch_of(machine, node, process)


def await_earlier(run: Run, outputs: Collection[str] | None, told: Notices) -> None:
    """Take over from earlier runs, when those that make the same files are known to be over.

    Raises KochiError for one that lives on this computer, and FencedError.
    """

    def concerns(facts: Any) -> bool:
        theirs = facts["outputs"]
        return theirs is None or outputs is None or not set(outputs).isdisjoint(theirs)

    pulses: dict[int, Pulse] = {}
    while True:
        alive: dict[int, Any] = {}
        try:
            if not (alive := run.adopt(concerns)):
                return
        except OSError as error:
            told.fault("earlier runs cannot be read now", error)
        for number, facts in alive.items():
            other = RunView.of(number, OWN, "", facts)
            is_known = number in pulses
            pulse = pulses.setdefault(number, Pulse(run.layout.run(number).alive))
            if other.is_here or (pulse.look() == 0 and is_known):
                raise refusal(other)
            told.warning(
                f"Another run in this directory was started on {other.node.host} (process "
                f"{other.process.pid}, {other.started}). Whether it still runs is not known here. "
                f"This run waits {REQUEUED * INTERVAL:.0f} s for a sign of life, and then adopts "
                "its jobs. Otherwise each job would be executed twice."
            )
        clock.sleep(_PAUSE)


def is_forced(workflow: Any, job: Any) -> bool:
    """Whether the user wants a job to be executed again: --forceall, --forcerun or --force."""
    settings = getattr(workflow, "dag_settings", None)
    if settings is None or settings.forceall or settings.forcetargets:
        return True
    forced = set(map(str, settings.forcerun))
    return any(
        one.rule.name in forced or not forced.isdisjoint(map(str, one.output))
        for one in single_jobs(job)
    )
