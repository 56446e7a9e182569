"""Ended jobs, runs and workers.

The jobs of a run go together, when the last of them ended long ago and the run is over; the run's
own record may stay longer. A job by hand is a run of one job. What goes first gets another name by
one rename. The highest number of a run and of a worker stays, because the next one is counted from
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from snakemake_kochi.base import files
from snakemake_kochi.cleaning.records import SILENCE, clean_allocations
from snakemake_kochi.cleaning.removal import LEFTOVER_AGE, Freed, Removal, measure
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there, write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node, this_node
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.queue.by_hand import tidy
from snakemake_kochi.queue.runs import RunView, list_runs, read_run
from snakemake_kochi.queue.views import list_workers, read_worker
from snakemake_kochi.tickets import history
from snakemake_kochi.tickets.hand import HAND
from snakemake_kochi.tickets.history import key_of
from snakemake_kochi.tickets.moving import listing, moved, removed
from snakemake_kochi.tickets.names import Layout, Name, RunPaths, numbers_in
from snakemake_kochi.tickets.run import ENDED, OWN
from snakemake_kochi.tickets.ticket import Ticket, ticket_in

_PATIENCE = 10.0  # seconds
_RANGE = re.compile(r"(\d+)(?:-(\d+))?\..*")  # what the names in the history begin with
_JOB = re.compile(r"\d+(\.\d+)?")
_PRIVATE = re.compile(r"run-(\d+)")  # the queue of a run


def clean_tickets(
    machine: MachinePaths, rules: Rules, removal: Removal, needed: Collection[str]
) -> None:
    """Delete what ended jobs, runs and workers have left. `needed` are jobs that others need."""
    layout = machine.layout
    if not is_there(machine.directory):
        return
    for directory in (layout.runs, layout.workers, layout.queues, layout.history):
        removal.sweep(Path(directory))
    _Jobs(layout, rules, removal, needed).clean()
    with removal.tolerating(f"queues in {layout.queues}"):
        _clean_queues(layout, removal)
    _clean_workers(machine, layout, rules, removal)
    alive = {run.controller: run for run in list_runs(machine) if run.state == "running"}
    workers = [worker for worker in list_workers(machine) if not worker.is_gone]
    began = [datetime.fromisoformat(run.started).timestamp() for run in alive.values()]
    names = {*alive, *(worker.controller for worker in workers if worker.controller)}
    with removal.tolerating(f"notes in {machine.allocations}"):
        clean_allocations(machine, rules, removal, names, min(began, default=float("inf")))


def _age(removal: Removal, path: str) -> float:
    return removal.age_of(Path(path))


@dataclass
class _Jobs:
    """Jobs, of runs and by hand."""

    layout: Layout
    rules: Rules
    removal: Removal
    needed: Collection[str]
    _numbers: list[int] = field(default_factory=list)

    def clean(self) -> None:
        removal, layout = self.removal, self.layout
        self._numbers = numbers_in(listing(layout.runs))
        for number in self._numbers:
            with removal.tolerating(f"run {number}"):
                removal.check_time()
                self._clean_run(number)
        for text in listing(layout.runs):
            # A run that was killed while it took its number, or what was being joined.
            path = Path(layout.runs, text)
            if text.startswith(("new.", "gone.")) and removal.is_older(path, LEFTOVER_AGE):
                removal.remove("leftovers", path)
        with removal.tolerating(f"jobs in {layout.history}"):
            self._clean_history()
        if self._numbers and not removal.is_dry:
            with removal.tolerating(f"jobs in {layout.history}"):
                tidy(layout)

    @cached_property
    def _needed_runs(self) -> set[int]:
        """The runs whose journals have the ends of needed jobs."""
        found = set()
        for run, job in (key_of(job) for job in self.needed if _JOB.fullmatch(job)):
            found.add(run)
            for number in (number for number in self._numbers if number > run):
                with suppress(FileNotFoundError):
                    if any(history.lines_of_end(self.layout, run, job, [number])):
                        found.add(number)
        return found

    @cached_property
    def _held(self) -> set[int]:
        """The runs with jobs that wait or run. A ticket may move while the queues are listed."""
        return {name.run for _ in range(2) for name, *_ in history.places(self.layout)}

    def _keeps(self, lines: Iterator[dict[str, Any]]) -> bool:
        """Whether one of these ended jobs is to be kept."""
        if not self.rules.keep:
            return False
        for line in lines:
            name = Name.parse(line.get("ended", ""))
            if name is not None:
                called = str((line.get("ticket") or {}).get("name", ""))
                job = f"{name.run}.{name.job}"
                if self.rules.keeps("jobs", (called, job, str(name.run))):
                    return True
        return False

    def _clean_run(self, number: int) -> None:
        paths, removal = self.layout.run(number), self.removal
        texts = listing(paths.directory)
        if not texts:
            return  # it is gone
        if history.was_by_hand(self.layout, number):
            self._clean_by_hand(number, texts)
            return
        run = read_run(self.layout, number)
        if ENDED not in texts:
            if run is None or not self._is_forgotten(run, texts):
                return
            if not removal.is_dry and not self._end(paths, texts):
                return
        size = Path(paths.journal).stat().st_size
        if size and _age(removal, paths.journal) < self.rules.jobs:
            return
        part = _sum(measure(Path(paths.directory, text)) for text in ("logs", "folded"))
        if size:
            ends = list(history.lines_backwards(paths.journal, [b'"ended": "']))
            if number in self._needed_runs or self._keeps(iter(ends)):
                return
            part.add(Freed(len(ends), 0, measure(Path(paths.journal)).bytes))
        whole = self._is_old_run(number, paths, run)
        if size or part.inodes:
            removal.count("jobs", part)
            if not whole and not removal.is_dry:
                for text in ("logs", "folded"):
                    removed(f"{paths.directory}/{text}")
                write_atomically(Path(paths.journal), b"")
        if whole:
            self._remove(paths, part)

    def _is_old_run(self, number: int, paths: RunPaths, run: RunView | None) -> bool:
        directory = run.directory if run is not None else ""
        return (
            number != self._numbers[-1]
            and _age(self.removal, paths.alive) >= self.rules.runs
            and not self.rules.keeps("runs", (str(number), directory))
        )

    def _is_forgotten(self, run: RunView, texts: Collection[str]) -> bool:
        """Whether a run was killed long ago, nobody lives who took over from it, and none of its
        jobs waits or runs."""
        for owner in _owners(run.number, texts):
            view = run if owner == run.number else read_run(self.layout, owner)
            if view is None:
                continue  # that was deleted
            is_known = view.is_gone
            if not is_known and this_node().can_see(view.node):
                return False
            age = self.rules.runs if is_known else max(self.rules.runs, SILENCE)
            if _age(self.removal, self.layout.run(view.number).alive) < age:
                return False
        return run.number not in self._held

    def _end(self, paths: RunPaths, texts: Collection[str]) -> bool:
        """Keep others from taking it over; False if one has."""
        tokens = [text for text in texts if text.partition(".")[0] == OWN]
        return any(moved(paths.token(t), paths.token(ENDED), _PATIENCE) for t in tokens)

    def _remove(self, paths: RunPaths, without: Freed) -> None:
        """Remove the directory of a run; `without`: what was counted already."""
        inner = Removal(self.removal.is_dry, self.removal.now, self.removal.deadline)
        inner.remove("runs", Path(paths.directory))
        freed = inner.freed["runs"]
        inodes, size = freed.inodes - without.inodes, freed.bytes - without.bytes
        self.removal.gone |= inner.gone
        self.removal.count("runs", Freed(1, inodes, size))

    # ---- by hand

    @cached_property
    def _noted(self) -> dict[int, list[Path]]:
        """The files with the ends of single jobs by hand."""
        found: dict[int, list[Path]] = {}
        for text in listing(self.layout.history):
            first, _, last = text.partition(".")[0].partition("-")
            if first.isdecimal() and first == last:
                found.setdefault(int(first), []).append(Path(self.layout.history, text))
        return found

    def _clean_by_hand(self, number: int, texts: Collection[str]) -> None:
        paths, removal = self.layout.run(number), self.removal
        directory = Path(paths.directory)
        noted = self._noted.get(number, [])
        ended = [Path(paths.inbox, str(n)) for n in Name.parse_all(listing(paths.inbox))]
        if not (ended or ENDED in texts):
            is_aside = HAND not in texts or bool(listing(paths.token(HAND)))
            # It was never submitted, and no server acts on such a request after so long.
            age = max(self.rules.jobs, LEFTOVER_AGE)
            if is_aside and number != self._numbers[-1] and removal.is_older(directory, age):
                removal.remove("leftovers", directory)
            return
        evidence = noted or ended
        age = min(map(removal.age_of, evidence or [directory]))
        if age < self.rules.jobs or number in self._needed_runs:
            return
        if self._keeps(line for path in evidence for line in _lines(path)):
            return
        parts = [*noted, *ended, Path(paths.logs)]
        if number != self._numbers[-1]:
            parts = [directory, *noted]
        freed = [measure(part) for part in parts if part.exists()]
        if not freed or (not evidence and parts[0] != directory):
            return
        if not removal.is_dry:
            for part in parts:
                Removal(False, removal.now, removal.deadline).remove("jobs", part)
        removal.gone |= set(parts)
        total = _sum(freed)
        removal.count("jobs", Freed(1, total.inodes, total.bytes))

    def _clean_history(self) -> None:
        """Delete what was joined, and what a killed clean-up has left."""
        removal = self.removal
        kept: list[tuple[int, int]] = []
        for text in listing(self.layout.history):
            path = Path(self.layout.history, text)
            if not text.endswith(".jsonl") or path in removal.gone:
                continue
            first, last = _range_of(text)
            lines = list(_lines(path))
            if (
                removal.age_of(path) < self.rules.jobs
                or any(first <= run <= last for run in self._needed_runs)
                or (first == last and first in self._numbers)
                or self._keeps(iter(lines))
            ):
                kept.append((first, last))
            else:
                freed = measure(path)
                removal.count("jobs", Freed(len(lines), freed.inodes, freed.bytes))
                removal.gone.add(path)
                if not removal.is_dry:
                    Removal(False, removal.now, removal.deadline).remove("jobs", path)
        for inner in {"logs", "folded"}.intersection(listing(self.layout.history)):
            for text in listing(f"{self.layout.history}/{inner}"):
                first, last = _range_of(text)
                path = Path(self.layout.history, inner, text)
                if any(one <= last and first <= other for one, other in kept):
                    continue
                if removal.age_of(path) >= self.rules.jobs:
                    freed = measure(path)
                    removal.count("jobs", Freed(0, freed.inodes, freed.bytes))
                    if not removal.is_dry:
                        Removal(False, removal.now, removal.deadline).remove("jobs", path)


def _range_of(text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    return (int(match[1]), int(match[2] or match[1])) if match else (0, 0)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """What is known of an ended job by hand: of its file in the history, or of its ticket."""
    data = files.read(str(path))
    if path.suffix == ".jsonl":
        yield from history.journal(data)
    else:
        yield {"ended": path.name, "ticket": history.kept(data)}


def _sum(each: Iterator[Freed] | list[Freed]) -> Freed:
    total = Freed()
    for freed in each:
        total.add(freed)
    total.count = 0
    return total


def _owners(number: int, texts: Collection[str]) -> set[int]:
    """A run, and who took over from it last."""
    adopters = (text.partition(".")[2] for text in texts if text.startswith(f"{OWN}."))
    return {number, *(int(text) for text in adopters)}


# ---- queues and workers


def _clean_queues(layout: Layout, removal: Removal) -> None:
    """Delete the queues of runs that are over, if nothing waits in them."""
    runs = set(numbers_in(listing(layout.runs)))
    for text in listing(layout.queues):
        match = _PRIVATE.fullmatch(text)
        if match is None:
            continue
        number, paths = int(match[1]), layout.queue(text)
        own = layout.run(number).directory
        is_gone = number not in runs or Path(own) in removal.gone
        is_over = is_gone or ENDED in listing(own)
        if is_over and not listing(paths.waiting) and not listing(paths.running):
            freed = measure(Path(paths.directory))
            removal.count("runs", Freed(0, freed.inodes, freed.bytes))
            if not removal.is_dry:
                removed(paths.directory)


def _clean_workers(machine: MachinePaths, layout: Layout, rules: Rules, removal: Removal) -> None:
    numbers = numbers_in(listing(layout.workers))
    held = {name.worker for _ in range(2) for name, *_ in history.places(layout)}
    for number in numbers[:-1]:
        with removal.tolerating(f"worker {number}"):
            paths = layout.worker(str(number))
            worker = read_worker(layout, number)
            age = max(rules.runs, SILENCE)
            if worker is None:
                # It has a number and has not started: its allocation may wait for long.
                last = paths.directory
            elif not worker.is_gone or rules.keeps("workers", (str(number), *worker.queues)):
                continue
            else:
                last = paths.alive
                here = this_node()
                if (
                    worker.state == "left"
                    or worker.is_on_this_node
                    or (here.has_rebooted_since(worker.node))
                ):
                    age = rules.runs
            if str(number) in held or _age(removal, last) < age:
                continue
            if removal.remove("workers", Path(paths.directory)) and not removal.is_dry:
                for queue in listing(layout.queues):
                    with suppress(OSError):
                        files.unlink(layout.queue(queue).serving(str(number)))


# ---- what others ask


def hosts_of_live_processes(machine: MachinePaths) -> Iterator[Node]:
    """The nodes of the workers and runs that may be alive."""
    if not is_there(machine.directory):
        return
    yield from (each.node for each in list_workers(machine) if not each.is_gone)
    yield from (each.node for each in list_runs(machine) if each.state == "running")


def all_tickets(machine: MachinePaths) -> Iterator[Ticket]:
    """The tickets that wait or run. Raises OSError."""
    layout = machine.layout
    found: set[tuple[int, int]] = set()
    for _ in range(
        2 if is_there(machine.directory) else 0
    ):  # one that moves is in the second listing
        for name, _, path in history.places(layout):
            if name.key in found:
                continue
            with suppress(FileNotFoundError, KochiError):
                ticket = ticket_in(files.read(path), path)
                found.add(name.key)
                yield ticket


def has_unstarted_workers(machine: MachinePaths) -> bool:
    """Whether a worker has a number and has not begun: it may name anything."""
    layout = machine.layout
    return is_there(machine.directory) and any(
        not os.path.exists(layout.worker(str(number)).facts)
        for number in numbers_in(listing(layout.workers))
    )
