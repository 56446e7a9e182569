"""What a run does: it takes a number, submits, collects ends, and takes over from dead runs."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from snakemake_kochi.base import clock, files
from snakemake_kochi.tickets.history import fold, journal, kept, last_line, lines_backwards
from snakemake_kochi.tickets.moving import Pause, is_listed, listing, moved, removed, repeated
from snakemake_kochi.tickets.names import Layout, Name, RunPaths, make_queue, nonce, numbers_in
from snakemake_kochi.tickets.watching import (
    FIRST,
    INTERVAL,
    REQUEUED,
    Beat,
    FencedError,
    IsGone,
    Pulse,
    Watch,
    facts_in,
    never,
)

SHARD = 256  # tickets in a directory
_PATIENCE = 30.0  # seconds in which a server is to answer a run, and to show a whole file
_TRIES = 5  # to read a file, too: a slow server answers few in that time
_FOR_GOOD = (errno.ENOTDIR,)  # somebody has changed the queue
_UNSEEN = 2.0  # seconds: GlusterFS shows a file for one without what another node has appended
_WITHOUT_DETAILS = ("lost", "cancelled")  # others may have ended it
OWN, ENDED = "own", "ended"


@dataclass(frozen=True)
class End:
    """How a job ended, by its last ticket. `line`: what its worker wrote last, if anything."""

    name: Name
    key: str
    line: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A submitted job; `key` is what its submitter calls it, in every run of a directory."""

    run: int
    number: int
    queue: str
    key: str


@dataclass
class Part:
    """A run that this one owns: itself, or a dead one. `open`: its jobs that have not ended."""

    number: int
    token: str
    open: dict[int, Job] = field(default_factory=dict)

    def note(self, note: Mapping[str, Any]) -> None:
        for job, key in enumerate(note["keys"], note["submitted"]):
            self.open[job] = Job(self.number, job, note["queue"], key)


class Run:
    """One run, by one thread. `beat`, every INTERVAL seconds, may come from another one, and so may
    `submit`, which a slow filesystem keeps for long. `next`: the number of the next job."""

    def __init__(self, layout: Layout, number: int, directory: str, is_gone: IsGone) -> None:
        """Use `begin`."""
        self.layout = layout
        self._is_gone = is_gone
        self.number = number
        self._directory = directory
        self.paths = layout.run(number)
        self.next = 1
        self._parts = {number: Part(number, OWN)}
        self._ended: set[tuple[int, int]] = set()  # by run and job
        self._beat = Beat(self.paths.alive, self._check)
        self.beat = self._beat.beat
        self._pulses: dict[int, Pulse] = {}
        self._made = set[str]()  # queues
        self._watch = Watch(layout, self._concerns, is_gone)
        self._closing: set[int] = set()
        self._logs: list[Name] = []  # of ended attempts, not folded yet
        self._journals: set[int] = set()  # of former owners: they may have ends of our parts
        self._taken_over: list[End] = []  # ends that former owners wrote, to be returned
        # Tickets in an inbox: since when, and how often that was tried.
        self._unread: dict[Name, tuple[float, int]] = {}
        self._not_ours: set[int] = set()  # runs that have ended, or of other directories

    @classmethod
    def begin(
        cls, layout: Layout, directory: str, facts: Any = None, is_gone: IsGone = never
    ) -> Run:
        """Take the next number. Raises OSError."""
        number = make_run(layout, directory, OWN, facts)
        return cls(layout, number, directory, is_gone)

    # ---- submission

    def submit(self, queue: str, tickets: Mapping[str, bytes]) -> None:
        """Hand over tickets: content by key.

        Raises FencedError; OSError: jobs that are not in `open` then were not submitted.
        """
        if queue not in self._made:
            make_queue(self.layout, queue)
            self._made.add(queue)
        for start in range(0, len(tickets), SHARD):
            keys = list(tickets)[start : start + SHARD]
            self._submit(queue, keys, [tickets[key] for key in keys])

    def _submit(self, queue: str, keys: Sequence[str], contents: Sequence[bytes]) -> None:
        first, last = self.next, self.next + len(contents) - 1
        self.next = last + 1  # numbers are used once, whatever happens now
        aside = written_aside(self.paths.token(OWN), first, contents)
        named = aside.rpartition("/")[2]
        note = {"submitted": first, "keys": keys, "queue": queue, "aside": named}
        self._note([note])
        self._parts[self.number].note(note)  # before one of them can end
        target = f"{self.layout.queue(queue).waiting}/{self.number}.{first}-{last}"
        # For as long as it takes: a server may act on a request after it was given up.
        while True:
            self._beat.feed()
            try:
                is_done = moved(aside, target, INTERVAL)
                break
            except OSError as error:
                if error.errno in _FOR_GOOD and self._withdraw(self.paths, OWN, named):
                    for job in range(first, last + 1):
                        self._parts[self.number].open.pop(job, None)
                    raise
                with suppress(OSError):  # if it was cleaned up
                    make_queue(self.layout, queue)
        if not is_done:
            # Workers may have taken all of it, unless the token has gone with it.
            self._check()

    def _note(self, lines: Iterable[dict[str, Any]]) -> None:
        text = "".join(f"\n{json.dumps(line)}\n" for line in lines)  # after a torn line, too
        repeated(lambda: files.append(self.paths.journal, text.encode(), sync=True), _PATIENCE)

    # ---- life

    def _check(self) -> None:
        for part in list(self._parts.values()):
            tokens = listing(self.layout.run(part.number).directory)
            # While this run closes it, a listing may have neither name; later it may be gone.
            is_owned = any(text.partition(".")[0] == OWN for text in tokens)
            is_ending = part.number in self._closing and not is_owned
            if part.token not in tokens and not is_ending:
                raise FencedError(f"run {self.number}")

    def _concerns(self, name: Name) -> bool:
        return name.run in self._parts and name.key not in self._ended

    @property
    def parts(self) -> list[int]:
        """The runs that this one owns: itself, and those that it took over from."""
        return list(self._parts)

    @property
    def open(self) -> list[Job]:
        """The jobs that have not ended."""
        return [job for part in list(self._parts.values()) for job in list(part.open.values())]

    # ---- ends

    def collect(self) -> list[End]:
        """The jobs that have ended since the last call. Raises FencedError, or OSError.

        The next run gets them, too, until a call of `look_after` or `end` after this one. To be
        called again when there is time: it feeds the heartbeat.
        """
        self._beat.require_fresh()
        ends: list[End] = []
        known: list[str] = []  # written into the journal, then
        for part in self._parts.values():
            inbox = self.layout.run(part.number).inbox
            for name in Name.parse_all(files.names(inbox)):
                if name.key not in self._ended:
                    if (end := self._read_end(inbox, name)) is None:
                        continue
                    ends.append(end)
                self._unread.pop(name, None)
                known.append(f"{inbox}/{name}")
        if ends:
            self._note([{**e.line, "ended": str(e.name), "key": e.key} for e in ends])
        for end in ends:
            self._end(end.name)
        ends, self._taken_over = [*self._taken_over, *ends], []
        for path in known:
            with suppress(OSError):  # listed again, and known
                files.unlink(path)
        return ends

    @property
    def waits_for_details(self) -> bool:
        """Whether jobs have ended of which that cannot be read yet: to be collected again soon."""
        return bool(self._unread)

    def in_inboxes(self) -> list[Name]:
        """Jobs that have ended, of which the journal may not know. Raises OSError."""
        inboxes = (self.layout.run(part.number).inbox for part in self._parts.values())
        return [name for inbox in inboxes for name in Name.parse_all(listing(inbox))]

    def _read_end(self, inbox: str, name: Name) -> End | None:
        """None while it may become readable: the name has the state already."""
        line: dict[str, Any] = {}
        is_whole = False
        with suppress(OSError):
            data = files.read(f"{inbox}/{name}")
            line = {**last_line(data, name), "ticket": kept(data)}
            is_whole = "details" in line or name.state in _WITHOUT_DETAILS
        since, tries = self._unread.get(name, (clock.now(), 1))
        if not is_whole and (clock.now() - since < _PATIENCE or tries < _TRIES):
            self._unread[name] = since, tries + 1
            return None
        job = self._parts[name.run].open.get(name.job)
        if job is None:
            return End(name, "", line)
        return End(name, job.key, {**line, "queue": job.queue})

    def fold(self) -> None:
        """Fold the logs of ended jobs, if there are many, or if the run has none open.

        Raises OSError: call it again. Any thread may call it, one at a time.
        """
        while len(self._logs) >= SHARD or (self._logs and not self._has_open):
            names = self._logs[:SHARD]
            for number in sorted({name.run for name in names}):
                fold(self.layout.run(number), [name for name in names if name.run == number])
            del self._logs[: len(names)]

    @property
    def _has_open(self) -> bool:
        return any(part.open for part in list(self._parts.values()))

    def _end(self, name: Name) -> None:
        self._ended.add(name.key)
        self._logs += [replace(name, attempt=n) for n in range(1, name.attempt + 1)]
        self._parts[name.run].open.pop(name.job, None)

    def look_after(self) -> None:
        """Requeue what dead workers hold, and read what former owners still wrote.

        Raises FencedError, or OSError. Every INTERVAL seconds.
        """
        self._watch.look(sorted({job.queue for job in self.open}))
        if len(self._parts) > 1:
            self._read_ends()
            self._close_ended_parts()

    # ---- adoption

    def adopt(self, concerns: Callable[[Any], bool] = lambda facts: True) -> dict[int, Any]:
        """Take over from the dead runs of this directory. Then their jobs are in `open`, or come
        from `collect`.

        Returns the facts of those that may be alive, by number: nothing was done, call it again.
        `concerns`: whether not to go on beside a run with these facts; of others, it takes over
        from those that are known to be dead. Raises FencedError, or OSError: call it again.
        """
        self._beat.feed()
        owners = self._owners(concerns)
        alive = [o for o in {*owners.values()} - {self.number} if not self._is_dead(o)]
        if alive:
            return {o: (facts_in(self.layout.run(o).facts) or {}).get("facts") for o in alive}
        taken = {number for number in owners if self._take_token(number)}
        self._journals |= set(owners)
        if not all(self._has_ended(owner) for owner in {*owners.values()} - {self.number}):
            clock.sleep(_UNSEEN)  # that was silent, and may have written a moment ago
        for number in sorted(taken - self._parts.keys()):
            self._parts[number] = self._read_part(number)
        self._read_ends()
        return {}

    def adopter(self) -> int | None:
        """The later run that has fenced this one; None if its directory is gone. Raises OSError."""
        token = self._token(self.number) or ""
        return int(token.partition(".")[2]) if "." in token else None

    def _owners(self, concerns: Callable[[Any], bool]) -> dict[int, int]:
        """The owner of each earlier run of this directory that has not ended and is to be taken.

        All that one owns, or nothing: its journal may have ends of each of them.
        """
        owners = {}
        wanted = set()
        for number in numbers_in(files.names(self.layout.runs)):
            if number >= self.number or number in self._not_ours:
                continue
            token = self._token(number)
            facts = None if token in (None, ENDED) else facts_in(self.layout.run(number).facts)
            # One that is damaged, although it was synced: nobody knows whose it was.
            if token is None or facts is None or facts["directory"] != self._directory:
                self._not_ours.add(number)
                continue
            owner = owners[number] = number if token == OWN else int(token.partition(".")[2])
            if owner == self.number or concerns(facts["facts"]):
                wanted.add(owner)
        if any(owner > self.number for owner in wanted):
            raise FencedError(f"run {self.number}")
        wanted |= {o for o in {*owners.values()} - wanted if o <= self.number and self._is_dead(o)}
        return {number: owner for number, owner in owners.items() if owner in wanted}

    def _token(self, number: int) -> str | None:
        """None for a job by hand, and for a run that was deleted."""
        texts = listing(self.layout.run(number).directory)
        return next((t for t in texts if t == ENDED or t.partition(".")[0] == OWN), None)

    def _is_dead(self, number: int) -> bool:
        if number not in self._pulses:
            self._pulses[number] = Pulse(self.layout.run(number).alive)
        still = self._pulses[number].look()
        return still >= REQUEUED or self._has_ended(number)

    def _has_ended(self, number: int) -> bool:
        """Whether the process of a run is known to have."""
        facts = facts_in(self.layout.run(number).facts)
        return self._is_gone(facts and facts["facts"])

    def _take_token(self, number: int) -> bool:
        """False if the run has ended meanwhile: it was silent, and is not dead."""
        paths = self.layout.run(number)
        mine = f"{OWN}.{self.number}"
        while (token := self._token(number)) != mine:
            if token in (None, ENDED):
                return False
            if token != OWN and int(token.partition(".")[2]) > self.number:
                raise FencedError(f"run {self.number}")
            moved(paths.token(token), paths.token(mine), _PATIENCE)
        return True

    def _read_part(self, number: int) -> Part:
        part = Part(number, f"{OWN}.{self.number}")
        paths = self.layout.run(number)
        for line in journal(files.read(paths.journal)):
            if "submitted" in line and not self._withdraw(paths, part.token, line["aside"]):
                part.note(line)
        return part

    def _withdraw(self, paths: RunPaths, token: str, aside: str) -> bool:
        """Whether a noted submission was never made, and cannot be any more.

        A rename that is under way may know the directory, whatever its name is now: only the rename
        of the same directory decides against it. Its new name tells later runs.
        """
        own = paths.token(token)
        withdrawn = f"withdrawn.{aside}"
        texts = files.names(own)
        if withdrawn in texts:
            return True
        return aside in texts and moved(f"{own}/{aside}", f"{own}/{withdrawn}", _PATIENCE)

    def _read_ends(self) -> None:
        for number in sorted(self._journals):
            for line in journal(files.read(self.layout.run(number).journal)):
                name = Name.parse(line.get("ended", ""))
                if name is not None and name.run in self._parts and name.key not in self._ended:
                    self._taken_over.append(End(name, line["key"], line))
                    self._end(name)

    def _close_ended_parts(self) -> None:
        """Nobody needs to adopt a run whose jobs have ended.

        The oldest first: the journal of a later one may have ends of an earlier one.
        """
        for part in sorted(self._parts.values(), key=lambda part: part.number):
            if part.open or part.number == self.number:
                return
            self._close(part)

    def _close(self, part: Part) -> None:
        paths = self.layout.run(part.number)
        self._closing.add(part.number)  # the heartbeat is another thread
        moved(paths.token(part.token), paths.token(ENDED), _PATIENCE)
        del self._parts[part.number]

    def end(self) -> None:
        """Leave; jobs that have not ended wait for the next run. Raises OSError: call it again."""
        if not self.open and self._parts:
            self._close_ended_parts()
            self._close(self._parts[self.number])


def has_users(layout: Layout, queues: Iterable[str], over: set[int]) -> bool:
    """Whether a run that has not ended has submitted to one of these queues. Raises OSError.

    `over`: the runs of which that is not asked again.
    """
    words = [f'"queue": "{queue}"'.encode() for queue in queues]
    for number in numbers_in(listing(layout.runs)):
        if number in over:
            continue
        paths = layout.run(number)
        texts = listing(paths.directory)
        if any(text.partition(".")[0] == OWN for text in texts):
            with suppress(FileNotFoundError):
                for _ in lines_backwards(paths.journal, words):
                    return True
        else:
            over.add(number)
    return False


def make_run(layout: Layout, directory: str, token: str, facts: Any = None) -> int:
    """Make the directory of a new run under the next number, which it returns. Raises OSError."""
    files.make_below(layout.directory, "runs")
    pause = Pause(_PATIENCE)
    while True:
        draft = RunPaths(f"{layout.runs}/new.{nonce()}")
        try:
            for directory_of_run in (draft.directory, draft.inbox, draft.logs, draft.token(token)):
                files.make(directory_of_run)
            text = json.dumps({"directory": directory, "facts": facts})
            files.write_new(draft.facts, text.encode(), sync=True)
            files.write_new(draft.journal, b"")
            files.write_new(draft.alive, FIRST)
            break
        except OSError as error:
            removed(draft.directory)
            pause(error)
    number = 0
    while True:
        try:
            if not number:
                number = 1 + max(numbers_in(files.names(layout.runs)), default=0)
            files.move(draft.directory, layout.run(number).directory)
            return number
        except OSError as error:
            reason = error
        if reason.errno in (errno.EEXIST, errno.ENOTEMPTY):
            number += 1
            continue
        # The number stays the same after any other error: it may be ours by now, or in a moment.
        try:
            if number and not is_listed(draft.directory):
                return number
        except OSError as error:
            reason = error
        pause(reason)


def written_aside(token: str, first: int, contents: Sequence[bytes]) -> str:
    """A directory with tickets, where no worker looks. Raises OSError, or FencedError."""
    pause = Pause(_PATIENCE)
    while True:
        aside = f"{token}/{first}-{first + len(contents) - 1}.{nonce()}"
        try:
            files.make(aside)
            for job, content in enumerate(contents, first):
                files.write_new(f"{aside}/{Name(0, job).in_shard}", content)
            return aside
        except OSError as error:
            reason = error
        # Whether a file was written is not known: this directory is not used any more.
        removed(aside)
        with suppress(OSError):
            if not is_listed(token):
                raise FencedError(token)
        pause(reason)
