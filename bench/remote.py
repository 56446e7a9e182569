"""Commands for a machine behind a login host, over a link with latency.

The latency is that of a relay between ssh and its server, which delivers what comes 20 ms later, in
each direction. `tc netem`, which not every kernel has, would do the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.laptop import MACHINE, Laptop, Taken
from bench.measure import Row, Size, wait_until
from snakemake_kochi import backoff
from snakemake_kochi.detached.launches import all_launches, look_at
from snakemake_kochi.queue.views import list_queues

_LATENCY = 0.02
_MOST_SECONDS = 2.0
_QUEUE = "q"
_PATIENCE = 3600.0  # seconds for the runs of a batch
_ON = ("-m", MACHINE)
_SHOW = ("show", "jobs", *_ON)
_ENQUEUE = ("enqueue", *_ON, "-q", _QUEUE, "--", "true")
_BATCH = ("batch", *_ON, "grid.yaml", "grid")
_SYNC = ("artifact", "sync", *_ON)

_Found = TypeVar("_Found")


def measure(directory: Path, size: Size) -> list[Row]:
    """A project of 200 files of 4 KB; a line of it has changed before each `enqueue` and `batch`. A
    batch is measured until its run is launched there, when the laptop may be closed. Ratios are to
    the same without latency. A relay counts logins and bytes, and the server sessions. Both ends
    are on this computer."""
    counts, runs = size.numbers((100, 1000), (2,)), size.runs(5)
    with Laptop(directory, _LATENCY) as laptop:
        bench = _Bench(laptop, runs)
        rows = [*bench.first(), *bench.next("show jobs", _SHOW), *bench.next("enqueue", _ENQUEUE)]
        for count in counts:
            rows += bench.batch(count)
        return [*rows, *bench.sync(counts[-1])]


class _Bench:
    def __init__(self, laptop: Laptop, runs: int) -> None:
        self._laptop, self._runs = laptop, runs

    def first(self) -> list[Row]:
        """With a login: a command that needs no files, and one before which all are sent."""
        laptop = self._laptop
        shown, sent = [], []
        for _ in range(self._runs):
            laptop.log_out()
            shown.append(laptop.run(*_SHOW))
            laptop.log_out()
            laptop.forget_project()
            sent.append(laptop.run(*_ENQUEUE))
        return [
            Row("`show jobs`, with a login", [each.seconds for each in shown], "s"),
            Row("`enqueue`, with a login, of a new project", [each.seconds for each in sent], "s"),
            *_counts(sent),
        ]

    def next(self, name: str, words: Sequence[str]) -> list[Row]:
        """A command while a connection is open."""

        def call() -> Taken:
            self._laptop.change(1)
            return self._laptop.run(*words)

        near, far = self._compared(call)
        return [_row(f"`{name}`, connected", near, far), *_counts(far)]

    def batch(self, count: int) -> list[Row]:
        near, far = self._compared(partial(self._hand_over, count))
        name = f"`batch --launch` of {count:,} points, connected"
        return [
            Row(name, [each.seconds for each in far], "s", limit=_MOST_SECONDS),
            _row("the same, compared", near, far),
            *_counts(far),
        ]

    def sync(self, count: int) -> list[Row]:
        """All results of a batch come home; then there are no new ones."""
        laptop = self._laptop
        laptop.change(count)
        laptop.run(*_BATCH, "--launch")
        launch = next(all_launches(laptop.machine)).paths
        if not backoff.wait_until(lambda: look_at(launch).is_over, _PATIENCE, 0.5):
            raise TimeoutError(f"{count} points took more than {_PATIENCE:.0f} s")
        laptop.collect()
        laptop.save()

        def come_home() -> Taken:
            laptop.restore()
            return laptop.run(*_SYNC)

        near, far = self._compared(come_home)
        again_near, again_far = self._compared(lambda: laptop.run(*_SYNC))
        return [
            _row(f"`artifact sync` of {count:,} results", near, far),
            *_counts(far),
            _row("`artifact sync` without new results", again_near, again_far),
            *_counts(again_far),
        ]

    def _hand_over(self, count: int) -> Taken:
        """What a batch takes until its run goes on there without the laptop."""
        laptop = self._laptop
        laptop.change(count)

        def count_waiting() -> int:
            return sum(each.waiting for each in list_queues(laptop.machine) if each.name == _QUEUE)

        waiting = count_waiting()
        # No worker serves the queue, so that nothing else is measured.
        taken = laptop.run(*_BATCH, "--launch", "--", "--kochi-queue", _QUEUE)
        try:
            # The next command would wait until the run has read the files.
            wait_until(lambda: count_waiting() > waiting)
        finally:
            laptop.run("launch", *_ON, "--stop")
        return taken

    def _compared(self, call: Callable[[], _Found]) -> tuple[list[_Found], list[_Found]]:
        """What calls find without latency, and with it; the two alternate."""
        near: list[_Found] = []
        far: list[_Found] = []
        for _ in range(self._runs):
            for latency, found in ((0.0, near), (_LATENCY, far)):
                self._laptop.link.latency = latency
                found.append(call())
        return near, far


def _row(name: str, near: Sequence[Taken], far: Sequence[Taken]) -> Row:
    ratios = [b.seconds / a.seconds for a, b in zip(near, far, strict=True)]
    return Row(name, [each.seconds for each in far], "s", statistics.median(ratios))


def _counts(taken: Sequence[Taken]) -> list[Row]:
    return [
        Row("the same: logins", [each.traffic.connections for each in taken], ""),
        Row("the same: sessions", [each.sessions for each in taken], ""),
        Row("the same: there", [each.traffic.sent / 1000 for each in taken], "kB"),
        Row("the same: back", [each.traffic.received / 1000 for each in taken], "kB"),
    ]
