"""Signs of life, and what happens when they end: tickets go back to their queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from snakemake_kochi.base import clock, files
from snakemake_kochi.tickets.moving import is_listed, listing, moved
from snakemake_kochi.tickets.names import Layout, Name, wake_workers

INTERVAL = clock.HEARTBEAT  # seconds between two signs of life
SILENT = 12  # intervals without one: dead
REQUEUED = 14  # intervals until others take what the dead one held
_HUNG = 6  # intervals without food: the loop hangs
_AT_MOST = 3  # intervals that one look counts: the observer may have slept itself
LOST = 3  # losses after which a ticket ends
FIRST = b"%012d" % 0  # the content of `alive` before the first beat
_PATIENCE = 10.0  # seconds; whoever looks comes again


# Whether a process of this node, which left these facts, is gone, and nothing of it is left: the
# kernel says so. False for one of another node.
IsGone = Callable[[Any], bool]


def never(facts: Any) -> bool:
    return False


class FencedError(Exception):
    """Others took this process for dead: it ends, and reports nothing more."""


class Beat:
    """The signs of life of this process, and what it finds in its directory in return."""

    def __init__(self, alive: str, check: Callable[[], None]) -> None:
        """`check` looks at the own directory. It raises FencedError, or OSError."""
        self._alive = alive
        self._check = check
        self._count = 0
        self._checked = self._fed = self._gave = clock.now()

    def beat(self) -> None:
        """Raises FencedError, or OSError. Gives no sign if the loop has not fed it for long."""
        try:
            if clock.now() - self._fed <= _HUNG * INTERVAL:
                self._count += 1
                files.overwrite(self._alive, b"%012d" % self._count)
                self._gave = clock.now()
        finally:
            self._look()

    def feed(self) -> None:
        """To be called by the loop: a process whose loop hangs is dead."""
        self._fed = clock.now()

    def require_fresh(self) -> None:
        """To be called before a step that nobody else may take. Raises FencedError, or OSError."""
        self.feed()
        # While no sign can be given (a full disk), others may say any time that it is dead.
        most = _AT_MOST if clock.now() - self._gave <= _HUNG * INTERVAL else 1
        if clock.now() - self._checked > most * INTERVAL:
            self._look()

    def _look(self) -> None:
        began = clock.now()
        self._check()
        self._checked = began


class Pulse:
    """The life of another process, on the observer's clock."""

    def __init__(self, alive: str) -> None:
        self._alive = alive
        self._last: bytes | None = None
        self._looked = clock.now()
        self.still = 0.0  # seconds

    def look(self) -> float:
        """The intervals without a sign of life. What cannot be read says nothing."""
        now = clock.now()
        passed, self._looked = now - self._looked, now
        try:
            seen = self._read()
        except OSError:
            return self.still / INTERVAL
        if seen != self._last:
            self._last, self.still = seen, 0.0
        else:
            self.still += min(passed, _AT_MOST * INTERVAL)
        return self.still / INTERVAL

    def _read(self) -> bytes | None:
        """None if its directory was removed: it lives no more."""
        try:
            return files.read(self._alive)
        except FileNotFoundError:
            if is_listed(self._alive.rpartition("/")[0]):
                raise
            return None


class Watch:
    """Looks after tickets that workers hold."""

    def __init__(
        self, layout: Layout, concerns: Callable[[Name], bool], is_gone: IsGone = never
    ) -> None:
        """`concerns`: whether a ticket's worker is to be watched."""
        self._layout = layout
        self._is_gone = is_gone
        self._facts: dict[str, Any] = {}
        self._concerns = concerns
        self._pulses: dict[str, Pulse] = {}
        self._dead: dict[str, float] = {}  # at how many intervals it was written to them

    def look(self, queues: Iterable[str]) -> None:
        """Requeue the tickets of dead workers. Raises OSError: look again."""
        paths = {queue: self._layout.queue(queue).running for queue in queues}
        self.look_at({queue: Name.parse_all(listing(path)) for queue, path in paths.items()})

    def look_at(self, held_now: Mapping[str, Sequence[Name]]) -> None:
        """As `look`: what workers hold was listed just now, by queue."""
        held: dict[str, list[tuple[str, Name]]] = {}
        for queue, running in held_now.items():
            for name in filter(self._concerns, running):
                held.setdefault(name.worker, []).append((queue, name))
        self._pulses = {worker: pulse for worker, pulse in self._pulses.items() if worker in held}
        errors = []
        for worker, tickets in held.items():
            try:
                self._look_at(worker, tickets)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _look_at(self, worker: str, tickets: Iterable[tuple[str, Name]]) -> None:
        paths = self._layout.worker(worker)
        if worker not in self._pulses:
            self._pulses[worker] = Pulse(paths.alive)
        still = self._pulses[worker].look()
        if worker not in self._facts:
            with suppress(FileNotFoundError):  # its directory was removed
                self._facts[worker] = facts_in(paths.facts)
        if still < SILENT:
            self._dead.pop(worker, None)
        elif worker not in self._dead:
            with suppress(FileNotFoundError):  # its directory was removed
                files.overwrite(paths.dead, b"dead\n")
            self._dead[worker] = still
        # Once it could have read that, unless it is known to be gone.
        is_over = worker in self._dead and still >= self._dead[worker] + REQUEUED - SILENT
        if is_over or self._is_gone(self._facts.get(worker)):
            facts = self._facts.get(worker)
            node = facts["node"]["host"] if isinstance(facts, dict) else ""
            for queue, name in tickets:
                self._note_loss(queue, name, node)
                requeue(self._layout, queue, name, name.losses + 1)

    def _note_loss(self, queue: str, name: Name, node: str) -> None:
        """Write what a dead worker could not, for people: several observers may do so."""
        state = "lost" if name.losses + 1 >= LOST else "waiting"
        details = {"node": node, "reason": "lost"}
        with suppress(OSError):
            path = f"{self._layout.queue(queue).running}/{name}"
            files.append(path, line_of(name, state, details))


def line_of(name: Name, state: str, details: Any) -> bytes:
    """What an attempt that has ended adds to the file of its ticket; see `history.last_line`."""
    line = {"attempt": name.attempt, "worker": name.worker, "state": state, "details": details}
    return f"\n{json.dumps(line)}\n".encode()


def facts_in(path: str) -> Any:
    """What a process wrote about itself; None if it is damaged. Raises OSError."""
    try:
        return files.parse(files.read(path))
    except ValueError:
        return None


def requeue(layout: Layout, queue: str, name: Name, losses: int) -> bool:
    """Give a held ticket back; after too many losses it ends. False: others had decided.

    Raises OSError: not known now.
    """
    paths = layout.queue(queue)
    if losses >= LOST:
        target = f"{layout.run(name.run).inbox}/{name.ended('lost')}"
    else:
        target = f"{paths.waiting}/{name.waiting(losses)}"
    done = moved(f"{paths.running}/{name}", target, _PATIENCE)
    wake_workers(layout, queue)
    return done
