"""A machine with a run and workers on tickets, and jobs for them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snakemake_kochi.base.wake import Wake, wake
from snakemake_kochi.processes import ProcessIdentity, is_gone
from snakemake_kochi.tickets.names import Name, wake_workers
from snakemake_kochi.tickets.run import End, Run
from snakemake_kochi.tickets.ticket import Resources, ShellJob, Ticket
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.settings import WorkerSettings, save_settings

QUEUE = "q"
PATIENCE = 60.0  # seconds, for what must happen


class Site:
    """A run in `work` that submits shell jobs, and workers of this machine."""

    def __init__(self, root: Path) -> None:
        self.work = root / "work"
        self.work.mkdir()
        self._root = root
        machine = self.settings().paths
        machine.directory.mkdir(parents=True)
        self.layout = machine.layout
        self.run = Run.begin(self.layout, str(self.work), is_gone=is_gone)
        assert not self.run.adopt()
        self._wake = Wake(self.run.paths.wake)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.begun = 0

    def settings(self, **options: Any) -> WorkerSettings:
        given = {"queues": (QUEUE,), "cores": 2, "stay": True, "parent": os.getpid(), **options}
        return WorkerSettings(root=str(self._root), machine="local", **given)

    def worker(self, **options: Any) -> subprocess.Popen[bytes]:
        """Start a worker; the first one has the number 1."""
        path = save_settings(self.settings(**options))
        process = subprocess.Popen(start_command(path), stdin=subprocess.DEVNULL)
        self.workers.append(process)
        self.begun += 1
        log = Path(self.layout.worker(str(self.begun)).log)
        until(log.exists)
        return process

    def submit(self, *scripts: str, **options: Any) -> None:
        """Submit a job for each script, whose key it is. `options`: of the ticket."""
        self.submit_as(self.run, *scripts, **options)

    def submit_as(self, run: Run, *scripts: str, **options: Any) -> None:
        run.submit(QUEUE, {script: self.ticket(script, **options) for script in scripts})
        wake_workers(self.layout, QUEUE)

    def ticket(self, script: str, **options: Any) -> bytes:
        resources = Resources(**options.pop("resources", {}))
        shell = ShellJob(script=script, executable="/bin/bash")
        own = {"name": "job", "directory": str(self.work), "shell": shell}
        own |= {"command": ("/bin/sh", "-c", script), **options}
        ticket = Ticket(**own, resources=resources)
        return json.dumps(ticket.to_dict()).encode()

    def collect(self, count: int = 1) -> list[End]:
        """The next ends, so many at least."""
        ends: list[End] = []
        deadline = time.monotonic() + PATIENCE
        while len(ends) < count and time.monotonic() < deadline:
            self._wake.wait(0.2)
            ends += self.run.collect()
            self.run.look_after()
        assert len(ends) >= count, self.logs()
        return ends

    def end_of(self, script: str, **options: Any) -> End:
        self.submit(script, **options)
        (end,) = self.collect()
        return end

    def wake_worker(self, worker: str) -> None:
        wake(self.layout.worker(worker).wake)

    def running(self) -> list[Name]:
        return Name.parse_all(os.listdir(self.layout.queue(QUEUE).running))

    def log_of(self, end: End) -> str:
        return Path(self.layout.run(end.name.run).log(end.name)).read_text()

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in Path(self.layout.workers).glob("*/log"))

    def close(self) -> None:
        for process in self.workers:
            process.kill()
            process.wait()
        self._wake.close()


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    tmp_path.chmod(0o700)
    made = Site(tmp_path)
    yield made
    made.close()


def pid_in(path: Path) -> ProcessIdentity:
    until(lambda: path.exists() and path.read_text().strip())
    process = ProcessIdentity.of(int(path.read_text()))
    assert process is not None
    return process


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def servers(site: Site, kind: str = "zygote") -> list[int]:
    """The living servers of all workers of a site."""
    lines = [line.split() for line in site.logs().splitlines() if " is process " in line]
    pids = [int(line[-1]) for line in lines if line[-4].startswith(kind)]
    return [pid for pid in pids if is_running(pid)]
