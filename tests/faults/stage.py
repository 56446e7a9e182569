"""Where the scenes play: a machine with a queue, a controller's inbox, and what must hold after."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faults.injection import run_scene

from snakemake_kochi.files import make_directory, to_json
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import (
    Attempt,
    Capacity,
    Claim,
    Inbox,
    Queue,
    Result,
    Ticket,
    WorkerState,
    allocate_ids,
    find_job,
)
from snakemake_kochi.queue.result import find_attempt
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.worker.settings import WorkerSettings
from snakemake_kochi.worker.start import run_worker

# Each execution leaves a line when it begins and one when it ends, in a file of its job.
SCRIPT = "echo begin $KOCHI_ATTEMPT >> {file}; {work}echo end $KOCHI_ATTEMPT >> {file}"


def dead_process() -> ProcessIdentity:
    """One that has been there and is gone."""
    process = subprocess.Popen(["true"], start_new_session=True)
    identity = ProcessIdentity.of(process.pid)
    process.wait()
    assert identity is not None
    return identity


@dataclass
class Stage:
    """A queue in a directory of its own, and the controller that hands over its tickets. `name` is
    that of its machine."""

    directory: Path
    name: str = "local"
    machine: MachinePaths = field(init=False)
    queue: Queue = field(init=False)
    inbox: Inbox = field(init=False)
    reported: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        make_directory(self.directory)
        self.machine = Root(self.directory / "root").machine(self.name)
        self.queue = Queue(self.machine, "q")
        self.inbox = Inbox.create(self.machine)

    def ticket(self, name: str = "job", work: str = "") -> Ticket:
        script = SCRIPT.format(file=name, work=work)
        return Ticket(
            name=name,
            command=("sh", "-c", script),
            directory=str(self.directory),
            controller=self.inbox.identity,
        )

    def submit(self, *names: str, work: str = "") -> list[Ticket]:
        return self.queue.submit([self.ticket(name, work) for name in names])

    def work(self) -> None:
        """The scene of a worker's life: until the queue is empty."""
        # Jobs of broken workers are ended here, so nothing may depend on who the test is.
        root = str(self.directory / "root")
        waits = {"idle_wait": 0.2, "between_jobs": 0.0, "grace": 0.2}
        run_worker(WorkerSettings(root, self.machine.name, ("q",), cores=1, **waits))

    def register_dead_worker(self) -> int:
        """A worker that claims tickets (in this process), and is dead for everybody who looks."""
        number = allocate_ids(self.machine, "worker", 1)[0]
        moment = now()
        state = WorkerState(
            worker=number,
            state="running",
            process=dead_process(),
            node=this_node(),
            queues=("q",),
            capacity=Capacity(1, 1000),
            started=moment,
            updated=moment,
        )
        make_directory(self.machine.worker(number).directory)
        self.machine.worker(number).state.write_bytes(to_json(state.to_dict()))
        return number

    def claim(self, worker: int, limit: int = 1) -> list[Claim]:
        return self.queue.claim(worker, lambda _: "take", limit=limit)

    def begin(self, claim: Claim) -> None:
        """The attempt's file of an execution of which nothing is left."""
        attempt = Attempt(
            job=claim.ticket.job,
            attempt=claim.ticket.attempt,
            nonce=claim.nonce,
            worker=claim.worker,
            node=this_node(),
            process=dead_process(),
            started=now(),
        )
        paths = self.machine.job(claim.ticket.job)
        make_directory(paths.directory)
        paths.attempt(claim.ticket.attempt).write_bytes(to_json(attempt.to_dict()))

    def repair(self) -> None:
        """All that a person has to do after any death: nothing but work on."""
        for _ in range(5):
            ending = run_scene(self.work)
            assert ending.ok, ending.error
            if not self.queue.waiting() and not self.queue.running():
                break
        self.reported += self.inbox.wait(0)

    def lines(self, name: str, word: str) -> list[int]:
        """The numbers of the attempts that began ("begin") or came to their end ("end")."""
        path = self.directory / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == word]

    def check(self, names: dict[int, str]) -> None:
        """What holds for each of these jobs once the queue has been worked on to its end."""
        assert self.queue.waiting() == [] and self.queue.running() == []
        assert [result.job for result in sorted(self.reported, key=lambda r: r.job)] == sorted(
            names
        ), "each is reported, and once"
        for result in self.reported:
            self._check_job(result, names[result.job])
        self._check_files()
        assert self.submit("after")[0].job > max(names, default=-1), "no number is given twice"
        (self.directory / "after").unlink(missing_ok=True)
        self.repair()
        assert find_job(self.machine, self.reported.pop().job).result.ok

    def _check_job(self, result: Result, name: str) -> None:
        assert find_job(self.machine, result.job).result == result, "it is the one that counts"
        began, ended = self.lines(name, "begin"), self.lines(name, "end")
        assert began == sorted(set(began)), "an attempt was executed twice"
        for attempt in began:
            assert find_attempt(self.machine.job(result.job), attempt), "nobody could find it"
        if result.reason == "success":
            assert ended[-1:] == [result.attempt], "the result names who ended last"
        if result.started is not None:
            own = find_attempt(self.machine.job(result.job), result.attempt)
            assert (own.nonce, own.worker) == (result.nonce, result.worker)

    def _check_files(self) -> None:
        """Nothing unknown is left but under hidden names."""
        known = ("waiting", "running", "subscribers", "submissions", "lock", "damaged")
        left = [path for path in self.queue.paths.directory.rglob("*") if not path.is_dir()]
        for path in left:
            parts = path.relative_to(self.queue.paths.directory).parts
            assert parts[0] in known or any(part.startswith(".") for part in parts), path
        assert not self.queue.paths.damaged.exists()

    def close(self) -> None:
        self.inbox.close()


def stages(directory: Path, name: str = "local") -> Iterator[Stage]:
    """One after the other, each in a directory of its own."""
    for number in itertools.count():
        yield Stage(directory / f"stage{number}", name)


def wait_until_gone(process: ProcessIdentity) -> None:
    deadline = time.monotonic() + 30
    while process.is_alive():
        assert time.monotonic() < deadline, f"process {process.pid} lives (we are {os.getpid()})"
        time.sleep(0.005)
