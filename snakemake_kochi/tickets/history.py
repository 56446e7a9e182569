"""What is known of jobs: those that live, those that have ended, and their logs.

An ended job is a line of a journal; logs of ended jobs are folded, up to 256 into one file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from snakemake_kochi.base import files
from snakemake_kochi.tickets.moving import is_listed, listing
from snakemake_kochi.tickets.names import Layout, Name, RunPaths, Shard, nonce

# What a journal keeps of an ended ticket.
_KEPT = ("name", "directory", "submitted", "resources", "labels", "command")


def kept(data: bytes) -> dict[str, Any]:
    """What a journal keeps of a ticket; nothing of a damaged one."""
    with suppress(ValueError):
        ticket = json.loads(data.partition(b"\n")[0])
        if isinstance(ticket, dict):
            script = (ticket.get("shell") or {}).get("script")
            brief = {name: ticket[name] for name in _KEPT if name in ticket}
            return brief | ({"command": script} if script else {})
    return {}


# ---- logs


def fold(paths: RunPaths, names: Sequence[Name]) -> None:
    """Move the logs of ended attempts into one file. Raises OSError: do it again.

    It begins with a line of JSON: the place and the size of each. Killed in between, a log is there
    twice.
    """
    contents: dict[str, bytes] = {}
    for name in names:
        with suppress(FileNotFoundError):
            contents[f"{name.job}.a{name.attempt}"] = files.read(paths.log(name))
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
            places, _, content = files.read(f"{paths.folded}/{text}").partition(b"\n")
            if found := json.loads(places).get(f"{name.job}.a{name.attempt}"):
                return content[found[0] : found[0] + found[1]]
    return None


# ---- jobs


@dataclass(frozen=True)
class View:
    """A job at one moment. `line`: what its journal says of its end; `ticket`: what is `kept`."""

    name: Name
    queue: str
    ticket: dict[str, Any]
    line: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """waiting, running, or how it ended."""
        return self.name.state or ("running" if self.name.worker else "waiting")


def living(layout: Layout, accept: Callable[[Name], bool] = lambda name: True) -> Iterator[View]:
    """The jobs that wait or run and that `accept` wants, the newest first. Raises OSError."""
    found: list[tuple[Name, str, str]] = []
    for queue in listing(layout.queues):
        paths = layout.queue(queue)
        for directory in (paths.waiting, paths.running):
            for text in listing(directory):
                if (name := Name.parse(text)) is not None:
                    found.append((name, queue, f"{directory}/{text}"))
                elif (shard := Shard.parse(text)) is not None:
                    inner = Name.parse_all(
                        f"{shard.run}.{each}" for each in listing(f"{directory}/{text}")
                    )
                    found += [(n, queue, f"{directory}/{text}/{n.in_shard}") for n in inner]
    for name, queue, path in sorted(found, reverse=True):
        if accept(name):
            with suppress(FileNotFoundError):  # it has moved meanwhile
                yield View(name, queue, kept(files.read(path)))


def ended(
    layout: Layout,
    runs: Callable[[Any], bool] = lambda facts: True,
    states: Sequence[str] = (),
) -> Iterator[View]:
    """The jobs that have ended, the newest first; of the runs whose `run.json` is accepted.

    `states`: those alone. Reads journals from their ends, and parses what it gives: of a million
    jobs, the last hundred take no longer than those of a hundred. Raises OSError.
    """
    wanted = [f'={state}", "key": "'.encode() for state in states] or [b'"ended": "']
    for number in sorted((int(t) for t in files.names(layout.runs) if t.isdecimal()), reverse=True):
        paths = layout.run(number)
        with suppress(FileNotFoundError):
            facts = json.loads(files.read(paths.facts))
            if runs(facts):
                queue = str(facts.get("queue") or "")
                for line in _lines_backwards(paths.journal, wanted):
                    if (name := Name.parse(line.get("ended", ""))) is not None:
                        yield View(name, line.get("queue", queue), line.get("ticket", {}), line)


def _lines_backwards(path: str, words: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """The lines of JSON with one of the words, from the last to the first."""
    with files.mapped(path) as data:
        end = len(data)
        places = {word: data.rfind(word) for word in words}
        while (at := max(places.values())) >= 0:
            start, stop = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            with suppress(ValueError):
                yield json.loads(data[start : len(data) if stop < 0 else stop])
            end = start
            places |= {word: data.rfind(word, 0, end) for word, at in places.items() if at >= end}


def find(layout: Layout, run: int, job: int) -> View | None:
    """A job, wherever it is; None if there is none. Raises OSError."""
    if not is_listed(layout.run(run).directory):
        return None
    for _ in range(3):  # it may move from a place not yet searched to one that was
        for view in living(layout, lambda name: name.key == (run, job)):
            return view
        paths = layout.run(run)
        for name in Name.parse_all(listing(paths.inbox)):
            if name.key == (run, job) and is_listed(f"{paths.inbox}/{name}"):
                with suppress(FileNotFoundError):
                    return View(name, "", kept(files.read(f"{paths.inbox}/{name}")))
        for number in sorted(int(text) for text in listing(layout.runs) if text.isdecimal()):
            if number >= run:
                key = f'"ended": "{run}.{job}.'.encode()
                for line in _lines_backwards(layout.run(number).journal, [key]):
                    name_ = Name.parse(line.get("ended", ""))
                    if name_ is not None and name_.key == (run, job):
                        return View(name_, line.get("queue", ""), line.get("ticket", {}), line)
    return None
