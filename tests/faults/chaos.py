"""Many short jobs, workers that are killed one after the other, and a controller that is, too.

The controller is a program of its own (`python chaos.py DIRECTORY JOBS`): it hands over jobs in
portions and writes down each that is reported to it, in one line, before it goes on. When it is
killed and started again it adopts what the killed one left. Its workers are independent of it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from support import worker_command

from snakemake_kochi.errors import KochiError
from snakemake_kochi.packs import JobFilter, Packs
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import Attempt, Inbox, Queue, Result, Ticket
from snakemake_kochi.queue.adoption import Ended, Orphans, Running
from snakemake_kochi.queue.entries import ended_job_numbers
from snakemake_kochi.queue.result import find_attempt, read_result
from snakemake_kochi.queue.ticket import read_ticket
from snakemake_kochi.queue.workers import list_workers

QUEUE = "q"
PORTION = 200


@dataclass(frozen=True)
class Chaos:
    """What is to happen. One worker is killed after each `kill_every` reported jobs and replaced
    (not by the clock: on a slow computer, none would live long enough to start a job); the
    controller is killed as often as `controller_deaths` says, at equal parts of its work."""

    jobs: int = 3000
    workers: int = 8
    cores: int = 2
    kill_every: int = 50
    controller_deaths: int = 2
    seed: int = 1


@dataclass(frozen=True)
class Outcome:
    """What happened. `problems` are sentences, none when nothing was lost or done twice."""

    seconds: float
    worker_deaths: int
    controller_deaths: int
    attempts: int
    executions: int
    problems: tuple[str, ...]


def machine_of(directory: Path) -> MachinePaths:
    return Root(directory / "root").machine("local")


def report_of(directory: Path) -> Path:
    return directory / "reported"


def said_by_workers(directory: Path) -> Path:
    return directory / "said"


def ticket_of(directory: Path, number: int, controller: str) -> Ticket:
    script = f'echo "$KOCHI_ATTEMPT_NONCE" >> runs/{number}; echo done > out/{number}'
    return Ticket(
        name=f"job{number}",
        command=("sh", "-c", script),
        directory=str(directory),
        controller=controller,
        identity=str(number),
        outputs=(f"out/{number}",),
    )


class Controller:
    """Has every job done once, whatever was done before it came."""

    def __init__(self, directory: Path, jobs: int) -> None:
        self._directory = directory
        self._machine = machine_of(directory)
        self._queue = Queue(self._machine, QUEUE)
        self._inbox = Inbox.create(self._machine, str(directory))
        self._report = os.open(report_of(directory), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        done = {line.split()[0] for line in report_of(directory).read_text().splitlines()}
        self._open = [number for number in range(jobs) if str(number) not in done]
        self._pending: dict[int, int] = {}

    def run(self) -> None:
        orphans = Orphans.find(self._machine, str(self._directory), self._inbox.identity)
        for identity in orphans.controllers:
            self._inbox.adopt(self._machine, identity)
        orphans.withdraw()
        to_do = [number for number in self._open if not self._adopt(orphans, number)]
        while to_do or self._pending:
            portion, to_do = to_do[:PORTION], to_do[PORTION:]
            self._submit(portion)
            to_do += self._listen(0.05 if to_do else 1.0)
        orphans.forget()
        self._inbox.close()

    def _adopt(self, orphans: Orphans, number: int) -> bool:
        found = orphans.take(str(number))
        if isinstance(found, Ended):
            self._write_down(number, found.result)
        elif isinstance(found, Running):
            self._pending[found.ticket.job] = number
            if orphans.has_ended(found.ticket.job):
                self._end(read_result(self._machine.job(found.ticket.job).result))
        elif self._make_way(orphans, number):
            # What was in the way may have come to a good end before it could be cancelled.
            return self._adopt(orphans, number)
        return found is not None

    def _make_way(self, orphans: Orphans, number: int) -> bool:
        """Two must not write one file at a time. Returns whether that had to be waited for."""
        had_to_wait = False
        while jobs := orphans.in_the_way((f"out/{number}",)):
            orphans.clear(jobs)
            self._queue.recover()
            had_to_wait = True
            time.sleep(0.01)
        return had_to_wait

    def _submit(self, numbers: list[int]) -> None:
        tickets = [ticket_of(self._directory, n, self._inbox.identity) for n in numbers]
        for ticket in self._queue.submit(tickets):
            self._pending[ticket.job] = int(ticket.identity or "")

    def _listen(self, timeout: float) -> list[int]:
        """Returns the jobs that have to be handed over again."""
        again = []
        for result in self._inbox.wait(timeout):
            number = self._end(result)
            if number is not None:
                again.append(number)
        return again

    def _end(self, result: Result) -> int | None:
        number = self._pending.pop(result.job, None)
        if number is None:
            return None  # withdrawn, or known already
        if not result.ok:
            return number  # three of its workers were killed
        self._write_down(number, result)
        return None

    def _write_down(self, number: int, result: Result) -> None:
        line = f"{number} {result.job} {result.attempt} {result.nonce} {result.reason}\n"
        os.write(self._report, line.encode())


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
        """The registered worker, if there is one yet.

        Before the worker starts, its supervisor has another child, which tests the locks. Whoever
        kills that one in place of the worker may leave a worker that nobody ends.
        """
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        workers = {worker.process.pid for worker in list_workers(machine_of(self._directory))}
        return next((pid for pid in map(int, children) if pid in workers), None)

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


def run_chaos(directory: Path, chaos: Chaos, patience: float = 240.0) -> Outcome:
    """Let it happen in an empty directory, and compare job by job. Raises TimeoutError."""
    for name in ("runs", "out"):
        (directory / name).mkdir(parents=True)
    began = time.monotonic()
    crowd = Crowd(directory, chaos)
    controllers = [_start_controller(directory, chaos)]
    try:
        _drive(directory, chaos, crowd, controllers, began + patience)
        statuses = crowd.stop()
    finally:
        crowd.end()
        for controller in controllers:
            if controller.poll() is None:
                controller.kill()
                controller.wait()
    seconds = time.monotonic() - began
    # A worker that was killed after its last result leaves the claim to whoever comes next.
    Queue(machine_of(directory), QUEUE).recover()
    accounts = Accounts(directory, chaos)
    # One that was only just started does not know signals yet, and has nothing to requeue.
    orderly = (0, -signal.SIGTERM)
    said = said_by_workers(directory).read_text()[-4000:]
    problems = [
        f"a worker left with status {status}; they said: {said}"
        for status in statuses
        if status not in orderly
    ]
    problems += [*_problems_of_controllers(controllers), *accounts.problems()]
    deaths = len(controllers) - 1
    return Outcome(
        seconds, crowd.deaths, deaths, accounts.attempts, accounts.executions, tuple(problems)
    )


def _start_controller(directory: Path, chaos: Chaos) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__).resolve()), str(directory), str(chaos.jobs)]
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, **pipes)


def _drive(
    directory: Path,
    chaos: Chaos,
    crowd: Crowd,
    controllers: list[subprocess.Popen[bytes]],
    deadline: float,
) -> None:
    while controllers[-1].poll() is None:
        reported = _reported(directory)
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {reported} of {chaos.jobs} jobs were reported")
        if reported >= (crowd.deaths + 1) * chaos.kill_every:
            crowd.kill_one()
        part = chaos.jobs * len(controllers) // (chaos.controller_deaths + 1)
        if len(controllers) <= chaos.controller_deaths and reported >= part:
            controllers[-1].kill()
            controllers[-1].communicate()
            controllers.append(_start_controller(directory, chaos))
        time.sleep(0.02)


def _reported(directory: Path) -> int:
    path = report_of(directory)
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _problems_of_controllers(controllers: list[subprocess.Popen[bytes]]) -> Iterator[str]:
    said = controllers[-1].communicate()[1].decode()
    if controllers[-1].returncode != 0:
        yield f"the last controller ended with {controllers[-1].returncode}: {said}"


class Accounts:
    """Everything that was written down, compared job by job."""

    def __init__(self, directory: Path, chaos: Chaos) -> None:
        self._directory = directory
        self._chaos = chaos
        self._machine = machine_of(directory)
        self._jobs: dict[str, list[int]] = defaultdict(list)
        self._packs = Packs(self._machine)
        for job in self._packs.numbers(JobFilter(), ended_job_numbers(self._machine)):
            paths = self._machine.job(job)
            with suppress(FileNotFoundError):
                ticket = read_ticket(paths.ticket, self._packs.read_json)
                self._jobs[ticket.identity or ""].append(job)
        self._reports: dict[str, list[list[str]]] = defaultdict(list)
        for line in report_of(directory).read_text().splitlines():
            self._reports[line.split()[0]].append(line.split())
        self.attempts = 0
        self.executions = 0

    def problems(self) -> list[str]:
        found = []
        for number in range(self._chaos.jobs):
            found += [f"job {number}: {text}" for text in self._problems_of(str(number))]
        queue = Queue(self._machine, QUEUE)
        if queue.waiting() or queue.running():
            found.append("the queue is not empty")
        if queue.paths.damaged.exists():
            found.append("tickets were damaged")
        return found

    def _problems_of(self, number: str) -> Iterator[str]:
        reports = self._reports[number]
        if len(reports) != 1:
            yield f"was reported {len(reports)} times"
            return
        _, job, attempt, nonce, reason = reports[0]
        read = self._packs.read_json
        results = {j: read_result(self._machine.job(j).result, read) for j in self._jobs[number]}
        successes = [j for j, result in results.items() if result.ok]
        if successes != [int(job)]:
            yield f"jobs {successes} succeeded and {job} was reported"
            return
        result = results[int(job)]
        if (str(result.attempt), result.nonce, result.reason) != (attempt, nonce, reason):
            yield f"its result {result} is not the one that was reported"
        yield from self._problems_of_executions(number, result)

    def _problems_of_executions(self, number: str, result: Result) -> Iterator[str]:
        """Each execution belongs to an attempt of its own, and the last is the one that counts."""
        begun = {}
        for job in self._jobs[number]:
            begun |= {attempt.nonce: attempt for attempt in self._attempts(job)}
        own = begun.get(result.nonce)
        if own is None or (own.job, own.attempt) != (result.job, result.attempt):
            yield f"its result names attempt {result.attempt}, which was never made"
        if any(a.job == result.job and a.attempt > result.attempt for a in begun.values()):
            yield "its result is not that of its last attempt"
        executed = (self._directory / "runs" / number).read_text().split()
        self.attempts += len(begun)
        self.executions += len(executed)
        twice = [nonce for nonce, count in Counter(executed).items() if count > 1]
        if twice or not set(executed) <= begun.keys():
            yield f"it was executed as {executed}, and its attempts are {sorted(begun)}"
        elif executed[-1] != result.nonce:
            yield "it was executed again after the execution that counts"
        if not (self._directory / "out" / number).exists():
            yield "its output is missing"

    def _attempts(self, job: int) -> Iterator[Attempt]:
        paths, packs, number = self._machine.job(job), self._packs, 1
        while packs.is_there(paths.attempt(number)) or packs.is_there(paths.ended(number)):
            with suppress(FileNotFoundError):
                yield find_attempt(paths, number, packs.read_json)
            number += 1


def main() -> int:
    directory, jobs = Path(sys.argv[1]), int(sys.argv[2])
    try:
        Controller(directory, jobs).run()
    except KochiError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
