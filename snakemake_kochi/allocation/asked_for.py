"""The allocations of one controller: what was asked for, and what has become of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from snakemake_kochi.allocation.sizing import Supply
from snakemake_kochi.queue import WorkerState
from snakemake_kochi.schedulers.interface import Allocation, State

# Seconds. Where a worker has left, its allocation has mostly ended a moment later, or waits again.
_SETTLING = 15.0
# After that an allocation that runs and has no worker is worth a word.
_LATE = 120.0


@dataclass
class Asked:
    """One allocation. `state`: as the scheduler said last; `lasting`: its worker stays though it
    has nothing to do; `had_worker`: one has come, and `gone_since`, in monotonic seconds, is when
    it was seen that none is there any more."""

    id: str
    queue: str
    supply: Supply
    lasting: bool
    since: float
    state: State = "pending"
    had_worker: bool = False
    gone_since: float | None = None

    @property
    def is_coming(self) -> bool:
        """Whether a worker may still come; after a first one only where it was requeued by the
        scheduler's queue."""
        return not self.had_worker or (self.gone_since is not None and self.state == "pending")


class AskedFor:
    """All that have not ended, by id."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: dict[str, Asked] = {}

    def __bool__(self) -> bool:
        return bool(self._all)

    def coming_for(self, seconds: float, queue: str) -> bool:
        """Whether one of a queue, of which no worker has come, was asked for that long ago."""
        moment = self._clock()
        return any(
            not asked.had_worker and moment - asked.since >= seconds for asked in self.coming(queue)
        )

    def add(self, ids: Iterable[str], queue: str, supply: Supply, lasting: bool) -> None:
        for each in ids:
            self._all[each] = Asked(each, queue, supply, lasting, self._clock())

    def drop(self, ids: Iterable[str]) -> None:
        for each in ids:
            self._all.pop(each, None)

    def all(self) -> list[Asked]:
        return list(self._all.values())

    def coming(self, queue: str | None = None) -> list[Asked]:
        """Those whose worker may still come: of one queue, or all."""
        return [
            asked
            for asked in self._all.values()
            if asked.is_coming and queue in (None, asked.queue)
        ]

    @property
    def lasting(self) -> int:
        """How many of those whose worker is there or may come have one that stays."""
        return sum(
            asked.lasting and (asked.is_coming or asked.gone_since is None)
            for asked in self._all.values()
        )

    @property
    def is_settled(self) -> bool:
        """Whether it is known of each that had a worker and has none whether another will come."""
        return not any(map(self._is_unsettled, self._all.values()))

    def _is_unsettled(self, asked: Asked) -> bool:
        if asked.gone_since is None or asked.state == "pending":
            return False
        return self._clock() - asked.gone_since < _SETTLING

    def note_workers(self, workers: Iterable[WorkerState]) -> tuple[bool, bool]:
        """Take note of all workers that have not gone; returns whether a first one has come to one
        of the allocations, and whether the last has gone from one."""
        there = {worker.allocation for worker in workers}
        came = went = False
        for asked in self._all.values():
            if asked.id in there:
                came |= not asked.had_worker
                asked.had_worker, asked.gone_since, asked.state = True, None, "running"
            elif asked.had_worker and asked.gone_since is None:
                asked.gone_since = self._clock()
                went = True
        return came, went

    def note_answer(self, found: Mapping[str, Allocation]) -> list[Asked]:
        """Take note of what the scheduler says of all; returns those that have ended, and drops
        them."""
        ended = []
        for asked in list(self._all.values()):
            allocation = found.get(asked.id)
            # Of what nobody can be asked about: a worker that has left has left it for good.
            is_guess = allocation is not None and not allocation.is_certain
            if is_guess and asked.had_worker:
                if asked.gone_since is not None:
                    ended.append(self._all.pop(asked.id))
            elif allocation is None or allocation.state == "ended":
                ended.append(self._all.pop(asked.id))
            else:
                asked.state = allocation.state
        return ended

    def late(self, running: Collection[str]) -> list[str]:
        """Of those that run, as the scheduler says, the ones whose worker ought to have come."""
        moment = self._clock()
        return [
            asked.id
            for asked in self._all.values()
            if asked.id in running and not asked.had_worker and moment - asked.since > _LATE
        ]
