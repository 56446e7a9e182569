"""Trouble that may pass, as of a full disk or of a lock that cannot be opened for a moment: the
worker goes on with what it can, tries again, and says so now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from snakemake_kochi.errors import KochiError
from snakemake_kochi.queue.postponed import Complaints

Returned = TypeVar("Returned")

RETRY = 1.0  # seconds until what did not work is tried again


class Troubles:
    """What of the queues does not work at the moment, by their names. None of it may end a worker:
    the jobs that run there would end with it."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._next = math.inf
        self._complaints = Complaints()

    def tried(self, name: str, action: Callable[[], Returned]) -> Returned | None:
        """What `action` returns; None when it raised OSError or KochiError. Then that name is in
        trouble, until something works with it."""
        what = f"{name} cannot be used now"
        try:
            returned = action()
        except (OSError, KochiError) as error:
            self._until[name] = time.monotonic() + RETRY
            self._next = min(self._next, self._until[name])
            self._complaints.about(what, error)
            return None
        if self._until.pop(name, None) is not None:
            self._complaints.over(what)
        return returned

    def is_in(self, name: str) -> bool:
        return name in self._until

    def is_pausing(self, name: str) -> bool:
        """Whether it is too early to try that again."""
        return time.monotonic() < self._until.get(name, 0.0)

    @property
    def deadline(self) -> float:
        """When something is to be tried again, in monotonic seconds."""
        return self._next

    def take_due(self) -> bool:
        """Whether something is to be tried again now; true once for each failure at most, for
        there may be no room to try."""
        is_due = time.monotonic() >= self._next
        if is_due:
            self._next = math.inf
        return is_due
