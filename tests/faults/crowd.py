"""Workers that are killed one after the other, and replaced."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
from support import worker_command

from snakemake_kochi.paths import MachinePaths, Root

QUEUE = "q"


@dataclass(frozen=True)
class Chaos:
    workers: int = 8
    cores: int = 2
    seed: int = 1


def machine_of(directory: Path) -> MachinePaths:
    return Root(directory / "root").machine("local")


def said_by_workers(directory: Path) -> Path:
    return directory / "said"


class Crowd:
    """The workers, as `kochi work -b` starts them."""

    def __init__(self, directory: Path, chaos: Chaos) -> None:
        self._directory = directory
        self._chaos = chaos
        self._random = random.Random(chaos.seed)
        self._ended: list[subprocess.Popen[bytes]] = []
        self._said = os.open(
            said_by_workers(directory), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        Root(directory / "root").secure(machine_of(directory).directory)
        self._there = [self._start() for _ in range(chaos.workers)]
        self.deaths = 0

    def _start(self) -> subprocess.Popen[bytes]:
        settings = {"queues": (QUEUE,), "stay": True, "cores": self._chaos.cores, "grace": 1}
        return subprocess.Popen(
            worker_command(self._directory / "root", self._directory, **settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
        )

    def kill_one(self) -> None:
        """Now the worker itself, now the supervisor that started it; and have it replaced."""
        victim = self._random.choice(self._there)
        target = victim.pid
        if self._random.random() < 0.5:
            target = self._worker_of(victim.pid) or victim.pid
        os.kill(target, signal.SIGKILL)
        self.deaths += 1
        self._there.remove(victim)
        self._ended.append(victim)
        self._there.append(self._start())

    def _worker_of(self, supervisor: int) -> int | None:
        """The first child of its supervisor, if there is one yet."""
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        return next(map(int, children), None)

    def stop(self) -> list[int]:
        """End all in good order; returns the exit statuses of those that were not killed."""
        for process in self._there:
            process.terminate()
        for process in self._ended:
            self._wait(process)
        return [self._wait(process) for process in self._there]

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired as error:
            left = [psutil.Process(process.pid)]
            left += left[0].children(recursive=True)
            found = [one.as_dict(["pid", "ppid", "status", "cmdline"]) for one in left]
            raise TimeoutError(f"a worker does not end; its processes: {found}") from error

    def end(self) -> None:
        """Whatever is left, after a failure."""
        os.close(self._said)
        for process in (*self._there, *self._ended):
            if process.poll() is None:
                process.kill()
                process.wait()
