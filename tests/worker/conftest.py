from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import JobView, Queue, Resources, Ticket, find_job

PATIENCE = 60.0


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for something that must happen; how long it takes is not what is tested."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"did not happen: {what or condition}"
        time.sleep(0.02)


class Site:
    """A machine in a temporary root, and real workers on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = Root(directory / "root")
        self.machine: MachinePaths = self.root.machine("local")
        self.workers: list[subprocess.Popen[str]] = []

    def submit(self, *scripts: str, queue: str = "q", **fields: object) -> list[Ticket]:
        """Each script is a job of its own, run by bash in the site's directory."""
        cores = fields.pop("cores", 1)
        exclusive = fields.pop("exclusive", False)
        tickets = [
            Ticket(
                name=fields.get("name", f"job{i}"),  # type: ignore[arg-type]
                command=fields.get("command", ("bash", "-c", script)),  # type: ignore[arg-type]
                directory=str(fields.get("directory", self.directory)),
                environment=fields.get("environment", {}),  # type: ignore[arg-type]
                resources=Resources(cores, exclusive),  # type: ignore[arg-type]
                controller=fields.get("controller"),  # type: ignore[arg-type]
            )
            for i, script in enumerate(scripts)
        ]
        return Queue(self.machine, queue).submit(tickets)

    def start(self, *arguments: object, **options: object) -> subprocess.Popen[str]:
        given = [str(argument) for argument in arguments]
        if "--queue" not in given and "--worker" not in given:
            given += ["--queue", "q"]
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "snakemake_kochi.worker"),
                *("--root", str(self.root.directory), "--machine", "local", *given),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[call-overload]
        )
        self.workers.append(process)
        return process

    def job(self, number: int) -> JobView:
        return find_job(self.machine, number)

    def ended(self, number: int) -> JobView:
        wait_until(lambda: self.job(number).state == "ended", f"the end of job {number}")
        return self.job(number)

    @staticmethod
    def wait_until(condition: Callable[[], object], what: str = "") -> None:
        wait_until(condition, what)

    def wait_for(self, name: str) -> str:
        """A file that a job writes: its content once there is a whole line."""
        path = self.directory / name
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"), f"the file {name}")
        return path.read_text()

    def log(self, number: int) -> str:
        return self.machine.job(number).log.read_text()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for process in made.workers:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
    for process in made.workers:
        try:
            process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
