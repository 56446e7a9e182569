"""A queue that one process looks at again and again."""

from __future__ import annotations

from snakemake_kochi.files import KeptNames
from snakemake_kochi.paths import QueuePaths
from snakemake_kochi.queue.entries import Entry, running_entries
from snakemake_kochi.queue.wakeup import subscribers


class KeptQueue:
    """The tickets of a queue and the workers that serve it.

    While they do not change, a look at each costs one call. The methods raise OSError when they are
    unknown now.
    """

    def __init__(self, queue: QueuePaths) -> None:
        self._queue = queue
        self._waiting = KeptNames(queue.waiting)
        self._running = KeptNames(queue.running)
        self._subscribers = KeptNames(queue.subscribers)

    def may_have_waiting(self) -> bool:
        """Whether there is a directory of waiting tickets, which may be empty."""
        return any(not name.startswith(".") for name in self._waiting.names())

    def running(self) -> list[Entry]:
        return running_entries(self._queue, self._running.names())

    def subscribers(self) -> list[int]:
        return subscribers(self._queue, self._subscribers.names())
