"""What is known of jobs: those that live, those that have ended, and their logs.

An ended job is a line of a journal, or of a file of `history/` if it was submitted by hand; logs of
ended jobs are folded, up to 256 into one file.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from snakemake_kochi.base import files
from snakemake_kochi.tickets.moving import is_listed, listing
from snakemake_kochi.tickets.names import (
    Layout,
    Name,
    RunPaths,
    Shard,
    nonce,
    numbers_in,
)

HAND_JOB = 1  # the number of the only job of a run by hand
# Lines of jobs by hand, by the numbers of the first and the last.
_HISTORY = re.compile(r"(\d+)-(\d+)\.\w+\.jsonl")
LARGE = 4 * 2**20  # bytes of a log
# What a journal keeps of an ended ticket.
_KEPT = ("name", "directory", "submitted", "resources", "labels", "command")


def kept(data: bytes) -> dict[str, Any]:
    """What a journal keeps of a ticket; nothing of a damaged one."""
    with suppress(ValueError):
        ticket = files.parse(data.partition(b"\n")[0])
        script = (ticket.get("shell") or {}).get("script")
        brief = {name: ticket[name] for name in _KEPT if name in ticket}
        return brief | ({"command": script} if script else {})
    return {}


def journal(data: bytes) -> list[dict[str, Any]]:
    """The whole lines of a file to which one process appends, and may have been killed."""
    lines = []
    for text in data.splitlines():
        with suppress(ValueError):
            lines.append(files.parse(text))
    return lines


def last_line(data: bytes, name: Name) -> dict[str, Any]:
    """What the worker that ended this ticket wrote at its end; others may have written, too.

    `earlier`: what others wrote when they put it back, if anything.
    """
    lines = journal(data)
    earlier = [line for line in lines if line.get("state") == "waiting"]
    wanted = {"attempt": name.attempt, "worker": name.worker, "state": name.state}
    own = [line for line in lines if wanted.items() <= line.items()]
    return (own[-1] if own else {}) | ({"earlier": earlier} if earlier else {})


# ---- logs


def fold(paths: RunPaths, names: Sequence[Name]) -> None:
    """Move the logs of ended attempts into one file. Raises OSError: do it again.

    It begins with a line of JSON: the place and the size of each. Killed in between, a log is there
    twice.
    """
    contents: dict[str, bytes] = {}
    for name in names:
        with suppress(FileNotFoundError):
            content = files.read(paths.log(name), LARGE)
            if len(content) < LARGE:  # a larger one stays what it is
                contents[f"{name.job}.a{name.attempt}"] = content
    if not contents:
        return
    places, at = {}, 0
    for text, content in contents.items():
        places[text] = at, len(content)
        at += len(content)
    files.make_below(paths.directory, "folded")
    jobs = [name.job for name in names]
    path = f"{paths.folded}/{min(jobs)}-{max(jobs)}.{nonce()}"
    data = b"\n".join([json.dumps(places).encode(), b"".join(contents.values())])
    files.write_new(path, data, sync=True)
    for text in contents:
        files.unlink(f"{paths.logs}/{text}")


def log_of(paths: RunPaths, name: Name) -> bytes | None:
    """The output of an attempt; None if there is none. Raises OSError."""
    with suppress(FileNotFoundError):
        return files.read(paths.log(name))
    for text in listing(paths.folded):
        first, _, last = text.partition(".")[0].partition("-")
        if int(first) <= name.job <= int(last):
            with files.mapped(f"{paths.folded}/{text}") as data:
                start = data.find(b"\n") + 1
                if found := files.parse(data[:start]).get(f"{name.job}.a{name.attempt}"):
                    return data[start + found[0] : start + found[0] + found[1]]
    return None


def logs_of(paths: RunPaths) -> Iterator[tuple[str, bytes]]:
    """The logs of a run, each as "JOB.aATTEMPT" and its content. Raises OSError."""
    for text in listing(paths.logs):
        with suppress(FileNotFoundError):  # folded meanwhile
            yield text, files.read(f"{paths.logs}/{text}")
    for text in listing(paths.folded):
        places, _, content = files.read(f"{paths.folded}/{text}").partition(b"\n")
        for name, (at, size) in json.loads(places).items():
            yield name, content[at : at + size]


# ---- jobs

JobId = int | str  # for people: 17, a job by hand, or "17.3", job 3 of run 17


def key_of(job: JobId) -> tuple[int, int]:
    """Run and job, as in `Name.key`."""
    run, _, number = str(job).partition(".")
    return int(run), int(number or HAND_JOB)


@dataclass(frozen=True)
class View:
    """A job at one moment. `line`: what its journal says of its end; `ticket`: what is `kept`."""

    name: Name
    queue: str
    ticket: dict[str, Any]
    line: dict[str, Any] = field(default_factory=dict)
    is_by_hand: bool = False

    @property
    def job(self) -> JobId:
        return self.name.run if self.is_by_hand else f"{self.name.run}.{self.name.job}"

    @property
    def state(self) -> str:
        """waiting, running, or how it ended."""
        return self.name.state or ("running" if self.name.worker else "waiting")


def was_by_hand(layout: Layout, run: int) -> bool:
    """Whether a person submitted its only job; its directory may be gone. Raises OSError."""
    with suppress(ValueError):
        try:
            return not files.parse(files.read(layout.run(run).facts)).get("directory", "?")
        except FileNotFoundError:
            return True
    return False


def places(layout: Layout) -> list[tuple[Name, str, str]]:
    """The tickets that wait or run, each with its queue and its path. Raises OSError."""
    found: list[tuple[Name, str, str]] = []
    for queue in listing(layout.queues):
        try:
            for directory in (layout.queue(queue).waiting, layout.queue(queue).running):
                found += [(name, queue, path) for name, path in tickets_in(directory)]
        except OSError:
            if is_listed(layout.queue(queue).directory):
                raise
    return found


def tickets_in(
    directory: str, wanted: Callable[[Shard], bool] = lambda shard: True
) -> Iterator[tuple[Name, str]]:
    """The tickets in `waiting/` or `running/`, and their paths; of `wanted` submissions alone.

    Raises OSError.
    """
    for text in listing(directory):
        path = f"{directory}/{text}"
        if (name := Name.parse(text)) is not None:
            yield name, path
        elif (shard := Shard.parse(text)) is not None and wanted(shard):
            for inner in Name.parse_all(f"{shard.run}.{each}" for each in listing(path)):
                yield inner, f"{path}/{inner.in_shard}"


def living(layout: Layout, accept: Callable[[Name], bool] = lambda name: True) -> Iterator[View]:
    """The jobs that wait or run and that `accept` wants, the newest first. Raises OSError."""
    by_hand: dict[int, bool] = {}
    for name, queue, path in sorted(places(layout), reverse=True):
        if accept(name):
            with suppress(FileNotFoundError):  # it has moved meanwhile
                data = files.read(path)
                line = last_line(data, name) if name.attempt > 1 else {}
                if name.run not in by_hand:
                    by_hand[name.run] = was_by_hand(layout, name.run)
                yield View(name, queue, kept(data), line, by_hand[name.run])


def ended(layout: Layout, states: Sequence[str] = (), names: Sequence[str] = ()) -> Iterator[View]:
    """The jobs that have ended, the newest first.

    `states`, `names`: those alone, if any is given. Reads journals from their ends, and parses what
    it gives: of a million jobs, the last hundred take no longer than those of a hundred. Raises
    OSError.
    """
    wanted = [f'={state}", "key": "'.encode() for state in states] or [b'"ended": "']
    named = [f'"name": {json.dumps(name)}'.encode() for name in names]

    # For names first: they are the rarer ones.
    words = (named, wanted) if named else (wanted,)

    def of_runs() -> Iterator[View]:
        for number in reversed(numbers_in(listing(layout.runs))):
            with suppress(FileNotFoundError):  # removed
                yield from _of_journal(layout.run(number).journal, *words)

    by_hand = (view for view in _by_hand(layout) if not states or view.state in states)
    yield from heapq.merge(of_runs(), by_hand, key=lambda view: view.name.run, reverse=True)


def ended_in(layout: Layout, run: int) -> Iterator[View]:
    """The jobs of which this run has noted the end, the newest first. Raises OSError."""
    return _of_journal(layout.run(run).journal, [b'"ended": "'])


def _of_journal(path: str, words: Sequence[bytes], further: Sequence[bytes] = ()) -> Iterator[View]:
    for line in lines_backwards(path, words, further):
        if (view := _of_line(line)) is not None:
            yield view


def _of_line(line: dict[str, Any], is_by_hand: bool = False) -> View | None:
    name = Name.parse(line.get("ended", ""))
    if name is None:
        return None
    return View(name, line.get("queue", ""), line.get("ticket", {}), line, is_by_hand)


def _by_hand(layout: Layout, wanted: int | None = None) -> Iterator[View]:
    """The ended jobs by hand, the newest first, or one. A job may be in several files."""
    found = []
    for text in listing(layout.history):
        if match := _HISTORY.fullmatch(text):
            first, last = map(int, match.groups())
            if wanted is None or first <= wanted <= last:
                found.append((last, text))
    found.sort(reverse=True)
    views: dict[int, View] = {}
    for (_, text), (following, _) in zip(found, [*found[1:], (0, "")], strict=False):
        with suppress(FileNotFoundError):  # joined meanwhile
            for line in journal(files.read(f"{layout.history}/{text}")):
                view = _of_line(line, is_by_hand=True)
                if view is not None and wanted in (None, view.name.run):
                    views[view.name.run] = view
        for run in sorted((run for run in views if run > following), reverse=True):
            yield views.pop(run)


def lines_backwards(
    path: str, words: Sequence[bytes], further: Sequence[bytes] = ()
) -> Iterator[dict[str, Any]]:
    """The lines of JSON with one of the words, from the last to the first; and one of `further`."""
    with files.mapped(path) as data:
        end = len(data)
        places = {word: data.rfind(word) for word in words}
        while (at := max(places.values())) >= 0:
            start, stop = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            line = data[start : len(data) if stop < 0 else stop]
            if not further or any(word in line for word in further):
                with suppress(ValueError):
                    yield files.parse(line)
            end = start
            places |= {word: data.rfind(word, 0, end) for word, at in places.items() if at >= end}


def find(layout: Layout, run: int, job: int) -> View | None:
    """A job, wherever it is; None if there is none. Raises OSError."""
    for _ in range(3):  # it may move from a place not yet searched to one that was
        if not is_listed(layout.run(run).directory):
            return next(_by_hand(layout, run), None) if job == HAND_JOB else None
        for view in living(layout, lambda name: name.key == (run, job)):
            return view
        for view in in_inbox(layout, run):
            if view.name.job == job:
                return view
        if was_by_hand(layout, run):
            for view in _by_hand(layout, run):
                return view
            continue
        later = [number for number in numbers_in(listing(layout.runs)) if number >= run]
        for line in lines_of_end(layout, run, job, later):
            if (found := _of_line(line)) is not None:
                return found
    return None


def lines_of_end(
    layout: Layout, run: int, job: int, journals: Iterable[int]
) -> Iterator[dict[str, Any]]:
    """What the journals of these runs say of the end of a job. Raises OSError."""
    for number in journals:
        yield from lines_backwards(layout.run(number).journal, [f'"ended": "{run}.{job}.'.encode()])


def in_inbox(layout: Layout, run: int) -> Iterator[View]:
    """The ended jobs of a run of which nobody has written that yet. Raises OSError."""
    inbox, by_hand = layout.run(run).inbox, was_by_hand(layout, run)
    for name in Name.parse_all(listing(inbox)):
        with suppress(FileNotFoundError):
            data = files.read(f"{inbox}/{name}")
            yield View(name, "", kept(data), last_line(data, name), by_hand)
