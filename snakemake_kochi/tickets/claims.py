"""What a worker does with tickets: claim, finish, put back."""

from __future__ import annotations

import errno
import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from snakemake_kochi.base import clock, files
from snakemake_kochi.tickets.moving import is_listed, listing, moved, removed, repeated
from snakemake_kochi.tickets.names import CANCEL, LOGIN, SERVE, Layout, Name, Shard, make_queue
from snakemake_kochi.tickets.watching import FIRST, INTERVAL, Beat, FencedError, line_of, requeue

_Found = TypeVar("_Found")
_OLD = 60.0  # seconds: no directory cache is older

# Whether to claim a ticket, by its name, by what was submitted, which can be read, and by what was
# claimed just before; see `Claims.claim`.
Accept = Callable[[Name, Callable[[], bytes], Sequence[Name]], bool | None]


class WorkerLife:
    """The directory of a worker: its signs of life, and what others write for it."""

    def __init__(
        self, layout: Layout, name: str, facts: Any = None, is_reserved: bool = False
    ) -> None:
        """Make the directory, unless it was made to reserve the name.

        Raises OSError: begin again with a new name.
        """
        self.name = Name(1, 1, worker=name).checked().worker
        self.paths = layout.worker(name)
        files.make_below(layout.directory, "workers")
        if is_reserved:
            files.make_below(layout.directory, "workers", name)
        else:
            files.make(self.paths.directory)
        files.write_new(self.paths.facts, json.dumps(facts).encode())
        # Before the first claim: a worker without this file is never found dead.
        files.write_new(self.paths.alive, FIRST)
        self.cancelled: set[Name] = set()  # by others, as of the last beat
        self.queues: list[str] = []  # that it is to serve, too
        self._beat = Beat(self.paths.alive, self.look)
        self.beat = self._beat.beat
        self.release: str | None = None  # how it is to leave, as of the last look
        self.wants_login = False  # somebody asks for its ssh server
        self.require_fresh, self.feed = self._beat.require_fresh, self._beat.feed

    def look(self) -> None:
        """See what others wrote. Raises FencedError, or OSError."""
        texts = listing(self.paths.directory)
        if "dead" in texts or "alive" not in texts:  # it slept until its directory was removed
            raise FencedError(self.name)
        orders = (text.removeprefix(CANCEL) for text in texts if text.startswith(CANCEL))
        self.cancelled = {*Name.parse_all(orders)}
        self.queues = [text.removeprefix(SERVE) for text in texts if text.startswith(SERVE)]
        if LOGIN in texts:
            with suppress(OSError):
                self.wants_login = is_listed(self.paths.login_asked)
        if "release" in texts:
            self.release = files.read(self.paths.release).decode().partition("\n")[0].strip()


class Claims:
    """The tickets of one queue that a worker holds."""

    def __init__(self, layout: Layout, queue: str, life: WorkerLife) -> None:
        """Make the queue if there is none. Raises OSError."""
        make_queue(layout, queue)
        self._layout = layout
        self._queue = queue
        self._paths = layout.queue(queue)
        self._life = life
        self._held: set[Name] = set()
        self.running: list[Name] = []  # whosoever, as of the last call of `reconcile`
        self._let_go: dict[Name, float] = {}  # when: a listing may be old
        self._is_unsure = False
        self._known: Iterator[tuple[str, Name]] = iter(())  # what waited when it was listed
        self._listed = -math.inf

    def claim(self, accept: Accept) -> list[Name]:
        """Tickets from the head of the queue that `accept` wants.

        It is asked in order: True takes the ticket, False leaves it to others, None ends the
        search. After lost answers there may be tickets for which it was not asked: what is too
        much, is to be put back. Raises FencedError, or OSError.
        """
        self._life.require_fresh()
        if self._is_unsure and (missed := self.reconcile()):
            return missed
        claimed: list[Name] = []
        if clock.now() - self._listed < INTERVAL and self._take(accept, claimed):
            return claimed
        self._listed, self._known = clock.now(), iter(())
        if not (texts := listing(self._paths.waiting)):
            return claimed
        # Who gets the lock goes by the order, others by their stripe: they lose fewer races.
        # Where it excludes nobody, only this is lost.
        with files.tried_lock(self._paths.lock) as has_lock:
            self._known = self._waiting(texts, has_lock)
            self._take(accept, claimed)
        return claimed

    def _take(self, accept: Accept, claimed: list[Name]) -> bool:
        """Claim from what was listed; False if more may be listed now, and nothing is claimed."""
        try:
            for path, name in self._known:
                try:
                    answer = accept(name, partial(files.read, path), claimed)
                except FileNotFoundError:
                    self._listed = -math.inf  # mostly another worker's: others are at work
                    continue
                if answer is None:
                    self._known = chain([(path, name)], self._known)
                    return True
                if not answer:
                    continue
                mine = name.held_by(self._life.name)
                try:
                    files.move(path, f"{self._paths.running}/{mine}")
                except FileNotFoundError:
                    self._is_unsure = True
                    continue
                except OSError:
                    self._is_unsure = True
                    break
                self._held.add(mine)
                claimed.append(mine)
        except OSError:
            self._listed = -math.inf
            if not claimed:
                raise
        return bool(claimed)

    def _waiting(self, texts: Sequence[str], in_order: bool) -> Iterator[tuple[str, Name]]:
        shards = [shard for text in texts if (shard := Shard.parse(text)) is not None]
        entries: list[Name | Shard] = [*Name.parse_all(texts), *shards]
        # By time of submission; what comes back had its turn before.
        entries.sort(key=lambda e: (e.run, e.job if isinstance(e, Name) else e.first))
        for entry in entries:
            if isinstance(entry, Name):
                yield f"{self._paths.waiting}/{entry}", entry
            else:
                yield from self._in_shard(entry, in_order)

    def _in_shard(self, shard: Shard, in_order: bool) -> Iterator[tuple[str, Name]]:
        directory = f"{self._paths.waiting}/{shard}"
        names = Name.parse_all(f"{shard.run}.{text}" for text in listing(directory))
        if not names:
            with suppress(OSError):  # whoever claims next
                files.rmdir(directory)
        names.sort(key=lambda name: name.job)
        stripe = 0 if in_order or not names else zlib.crc32(self._life.name.encode()) % len(names)
        for name in (*names[stripe:], *names[:stripe]):
            yield f"{directory}/{name.in_shard}", name

    def reconcile(self) -> list[Name]:
        """Tickets that are this worker's although the answer to its claim was lost.

        Raises OSError. To be called now and then, too: a server may act on a request late. What was
        let go a minute ago and is still listed was not, whatever was answered: it is put back.
        """
        self.running = names = Name.parse_all(listing(self._paths.running))
        mine = {name for name in names if name.worker == self._life.name}
        now = clock.now()
        let_go = dict(self._let_go)  # as it is now: jobs end in other threads
        old = {name for name, when in let_go.items() if now - when > _OLD}
        missed = sorted(mine - self._held - let_go.keys())
        self._held.update(missed)
        self._is_unsure = False
        for name in sorted(old & mine):
            self.put_back(name)
        for name in old - mine:
            del self._let_go[name]
        return missed

    def read(self, name: Name) -> bytes:
        """What was submitted. Raises OSError; FileNotFoundError if others took the ticket."""
        path = f"{self._paths.running}/{name}"
        try:
            return _if_there(path, files.read)
        except FileNotFoundError:
            self._drop(name)
            raise

    def finish(self, name: Name, state: str, details: Any = None) -> bool:
        """End a ticket; False if others took it from this worker before, or its end already.

        Repeats until the server answers. `details`: JSON; those of a cancelled job do without, if
        they cannot be written: a person waits for its end.
        """
        path = f"{self._paths.running}/{name}"
        with suppress(OSError):
            self._append(name, state, details, 0.0 if state == "cancelled" else math.inf)
        target = f"{self._layout.run(name.run).inbox}/{name.ended(state)}"
        done = moved(path, target, math.inf)
        self._drop(name)
        if name in self._life.cancelled:
            removed(self._life.paths.cancel(name))
        return done

    def put_back(self, name: Name, why: Any = None, losses: int = 0) -> bool:
        """Give a ticket to other workers; `why` (JSON) goes into its file, if it was begun.

        `losses`: how many more it has had: it ends when there are too many, and `finish` can do so.
        Raises OSError: not known now.
        """
        if why is not None:
            with suppress(OSError):  # it is for people alone
                self._append(name, "waiting", why, 0.0)
        done = requeue(self._layout, self._queue, name, name.losses + losses)
        self._drop(name)
        return done

    def _append(self, name: Name, state: str, details: Any, patience: float) -> None:
        path, text = f"{self._paths.running}/{name}", line_of(name, state, details)
        with suppress(FileNotFoundError):  # the rename decides
            repeated(lambda: _if_there(path, lambda file: files.append(file, text)), patience)

    def _drop(self, name: Name) -> None:
        self._let_go[name] = clock.now()  # first: another thread may reconcile
        self._held.discard(name)


def _if_there(path: str, action: Callable[[str], _Found]) -> _Found:
    """Raises FileNotFoundError where the directory agrees: a mount may be missing for a moment."""
    try:
        return action(path)
    except FileNotFoundError as error:
        if is_listed(path):
            raise OSError(errno.ESTALE, "listed, and not found", path) from error
        raise
