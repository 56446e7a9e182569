"""A machine with many ended jobs, and what a person sees of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from faults.stage import dead_process

from snakemake_kochi.files import make_directory, write_exclusively
from snakemake_kochi.files import to_json as json_of
from snakemake_kochi.packing.packer import Packing, pack
from snakemake_kochi.packs import Packs
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue import (
    Attempt,
    JobView,
    Queue,
    Ticket,
    attempts,
    find_job,
    list_jobs,
    packed_log,
)
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.result import Result, new_nonce
from snakemake_kochi.queue.ticket import now

Seen = tuple[JobView, bytes, tuple[str, ...]]


class Stage:
    """A machine in a directory; its jobs are submitted, claimed and ended as by a worker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.machine: MachinePaths = Root(make_directory(directory / "root")).machine("local")
        self.queue = Queue(self.machine, "q")

    def submit(self, names: Iterable[str], controller: str | None = None) -> list[Ticket]:
        return self.queue.submit(
            [
                Ticket(name=name, command=("true",), directory="/", controller=controller)
                for name in names
            ]
        )

    def begin(self, count: int) -> list[Claim]:
        """Claim jobs, and write what a worker writes before and while they run."""
        claims = self.queue.claim(7, lambda _: "take", limit=count)
        for claim in claims:
            paths = self.machine.job(claim.ticket.job)
            make_directory(paths.directory)
            attempt = Attempt(
                *(claim.ticket.job, claim.ticket.attempt, new_nonce(), 7, this_node()),
                *(dead_process(), now()),
            )
            file = paths.attempt(attempt.attempt)
            write_exclusively(file, json_of(attempt.to_dict()))
            paths.log.write_bytes(f"{claim.ticket.name} said so\n".encode())
        return claims

    def result(self, claim: Claim, ok: bool = True) -> Result:
        job = claim.ticket.job
        return Result(
            *(job, claim.ticket.attempt, new_nonce(), 7, "node"),
            *("success" if ok else "failed", 0 if ok else 1, None),
            *(now(), now(), str(self.machine.job(job).log)),
        )

    def finish(self, claims: Iterable[Claim], ok: Callable[[int], bool] = lambda job: True) -> None:
        ended = [(claim, self.result(claim, ok(claim.ticket.job))) for claim in claims]
        outcomes = [self.queue.finish(claim, result) for claim, result in ended]
        assert all(outcome is True for outcome in outcomes), outcomes

    def end(self, *names: str, ok: Callable[[int], bool] = lambda job: True) -> None:
        """Submit jobs and end them."""
        self.submit(names)
        self.finish(self.begin(len(names)), ok)

    def pack(self) -> Packing:
        return pack(self.machine)

    def packs(self) -> list[Path]:
        return sorted(self.machine.packs.glob("*/*.zip"))

    def directories(self) -> list[int]:
        """The jobs that have a directory of their own."""
        return sorted(int(path.name) for path in self.machine.jobs.glob("*/[0-9]*"))

    def seen(self) -> dict[int, Seen]:
        """All that is shown of each job."""
        packs = Packs(self.machine)
        return {view.job: self._seen(view, packs) for view in self.list()}

    def seen_of(self, job: int) -> Seen:
        return self._seen(find_job(self.machine, job), Packs(self.machine))

    def _seen(self, view: JobView, packs: Packs) -> Seen:
        # How long ago it was depends on the moment of the look.
        found = attempts(self.machine, view, packs)
        tried = tuple(str(replace(attempt, seconds=None)) for attempt in found)
        return view, self._log(view, packs), tried

    def _log(self, view: JobView, packs: Packs) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return view.log.read_bytes()
        if view.state == "waiting":
            return b""
        file = packs.file(view.log)
        assert file is not None
        return file.read()

    def log(self, job: int) -> bytes:
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                return self.machine.job(job).log.read_bytes()
            if (packed := packed_log(self.machine, job)) is not None:
                return packed.read()
        assert find_job(self.machine, job).state == "waiting"
        return b""

    def list(self) -> list[JobView]:
        return list_jobs(self.machine, ended=True, limit=10_000)

    def files(self, job: int) -> list[str]:
        """The names of the files of a job, wherever they are."""
        directory = self.machine.job(job).directory
        own = os.listdir(directory) if directory.exists() else []
        return sorted({*own, *Packs(self.machine).files(job)})


def inodes(directory: Path) -> int:
    found = [directory.lstat(), *(path.lstat() for path in directory.rglob("*"))]
    return len({(each.st_dev, each.st_ino) for each in found})
