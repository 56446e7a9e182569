from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem
from support import wait_until, worker_command

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.by_hand import submit
from snakemake_kochi.queue.views import JobView, find_job
from snakemake_kochi.tickets.ticket import Resources, Ticket
from snakemake_kochi.worker import work_command
from snakemake_kochi.worker.settings import WorkerSettings

PATIENCE = 60.0


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int | str) -> bool:
    process = ProcessIdentity.of(int(pid))
    return process is not None and process.is_alive()


class Site:
    """A machine in a temporary root, and real workers on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = Root(directory / "root")
        self.machine: MachinePaths = self.root.machine("local")
        self.workers: list[subprocess.Popen[str]] = []
        self.jobs: list[int] = []
        self.root.secure(self.machine.directory)  # as the commands that start workers do

    def submit(self, *scripts: str, queue: str = "q", **fields: object) -> list[Ticket]:
        """Submit a job for each script; bash runs it in the site's directory."""
        resources = Resources(
            **{key: fields.pop(key) for key in Resources.__dataclass_fields__ if key in fields}  # type: ignore[arg-type]
        )
        tickets = [
            Ticket(
                name=fields.get("name", f"job{i}"),  # type: ignore[arg-type]
                command=fields.get("command", ("bash", "-c", script)),  # type: ignore[arg-type]
                directory=str(fields.get("directory", self.directory)),
                environment=fields.get("environment", {}),  # type: ignore[arg-type]
                resources=resources,
                outputs=fields.get("outputs", ()),  # type: ignore[arg-type]
                logs=fields.get("logs", ()),  # type: ignore[arg-type]
            )
            for i, script in enumerate(scripts)
        ]
        given = [submit(self.machine, queue, ticket) for ticket in tickets]
        self.jobs += [ticket.job for ticket in given]
        return given

    def start(self, *, prefix: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
        """Start a worker, by default for the queue q; with `echo`, as `kochi work` does.

        The options are those of WorkerSettings and of Popen; `stdout_to` is Popen's stdout.
        """
        names = WorkerSettings.__dataclass_fields__
        settings = {name: options.pop(name) for name in list(options) if name in names}
        if "worker" not in settings:
            settings.setdefault("queues", ("q",))
        # Beside the directory of the jobs, which some tests list or fill.
        aside = self.directory.with_name(f"{self.directory.name}-settings")
        aside.mkdir(exist_ok=True)
        command = worker_command(self.root.directory, aside, **settings)
        if settings.get("echo"):
            command = work_command(command[-1])
        process = subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=options.pop("stdout_to", subprocess.PIPE),
            text=True,
            **options,
        )
        self.workers.append(process)
        return process

    def job(self, number: int) -> JobView:
        """The job that was submitted so far before, from 0."""
        return find_job(self.machine, self.jobs[number])

    def ended(self, number: int) -> JobView:
        wait_until(lambda: self.job(number).state == "ended", f"the end of job {number}")
        return self.job(number)

    @staticmethod
    def wait_until(condition: Callable[[], object], what: str = "") -> None:
        wait_until(condition, what)

    def wait_for(self, name: str) -> str:
        """The content of a file that a job writes, once the file has a whole line."""
        path = self.directory / name
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"), f"the file {name}")
        return path.read_text()

    def log(self, number: int) -> str:
        return self.job(number).output.decode("utf-8", "replace")


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


@pytest.fixture
def faulty(site: Site) -> Iterator[FaultyFilesystem]:
    """A faulty filesystem with the site's KOCHI_ROOT, but without the directory of the jobs."""
    with FaultyFilesystem(site.directory / "backing", site.root.directory) as filesystem:
        site.root.secure(site.machine.directory)
        yield filesystem
