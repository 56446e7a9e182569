"""The files of a machine of an earlier release, with the names that it gave them."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults.injection import Scene, deaths, run_scene
from faults.stage import dead_process

from snakemake_kochi.detached.launches import look_at
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.locks import migration, settle_locks
from snakemake_kochi.locks.settings import find_lock_settings
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import Inbox, Orphans, Queue, Ticket, list_workers
from snakemake_kochi.queue.controllers import last_adopter
from snakemake_kochi.queue.heartbeat import read_presumed_dead

ELSEWHERE = {"host": "n7", "machine": "m7", "boot": "b7", "namespace": "pid:[7]"}
HEARTBEAT = 0.05
LOCKS = """{
 "version": 1,
 "directory": "locks",
 "kind": "flock",
 "host": "n1",
 "time": "2026-01-01T00:00:00.000000+00:00",
 "nonce": "b109fe27f5b410db"
}
"""
LONG_AGO = 60.0


def write_json(path: Path, data: Mapping[str, Any], age: float = LONG_AGO) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    os.utime(path, (time.time() - age,) * 2)


class Earlier:
    """A machine with two controllers that died, the second after it had adopted the jobs of the
    first; one result that nobody read, one ticket that waits, and one that a dead worker holds."""

    def __init__(self, machine: MachinePaths, directory: Path) -> None:
        self.machine, self.directory = machine, directory
        write_json(machine.directory / "locks.json", {})
        (machine.directory / "locks.json").write_text(LOCKS)
        machine.locks.directory.mkdir(mode=0o700)
        for number, identity in enumerate(("first", "second")):
            self.controller(identity)
            os.mkfifo(machine.controllers / identity / "bell")
            ticket = self.ticket(number, identity)
            write_json(machine.queues / "q/waiting/00000000" / f"{number:010d}-1.json", ticket)
        (machine.controllers / "first/bell").unlink()
        (machine.controllers / "first/bell").symlink_to("../second/bell")
        heir = {"version": 1, "heir": "second", "host": "n1", "time": "2026-01-01T00:00:00+00:00"}
        write_json(machine.controllers / "first/heir-1.json", heir)
        write_json(machine.queues / "q/running" / f"{2:010d}-1-0.json", self.ticket(2, "second"))
        (machine.queues / "q/bells").mkdir(mode=0o700)
        self.worker(0)
        result = {**RESULT, "job": 3, "worker": 1, "node": "n7"}
        for path in ("jobs/00000000/3/result.json", "controllers/second/inbox/3-d3.json"):
            write_json(machine.directory / path, result)
        write_json(machine.directory / "jobs/00000000/3/ticket.json", self.ticket(3, "second"))
        self.worker(1, node=ELSEWHERE)
        lost = {"worker": 1, "observer": "n1", "stood_still": 60.0, "time": "2026-01-01"}
        write_json(machine.workers / "1/lost.json", {"version": 2, **lost})
        write_json(machine.directory / "numbers/job/00000000/0.json", {"version": 1, "next": 4})
        write_json(machine.directory / "numbers/worker/00000000/0.json", {"version": 1, "next": 2})

    def ticket(self, job: int, controller: str) -> dict[str, Any]:
        given = Ticket(
            name=f"job{job}",
            command=("true",),
            directory=str(self.directory),
            controller=controller,
            identity=f"i{job}",
        )
        return given.handed_over(job, "q", self.machine.name).to_dict()

    def controller(self, identity: str, age: float = LONG_AGO, **fields: Any) -> Path:
        path = self.machine.controllers / identity / "controller.json"
        state = {
            "version": 1,
            "controller": identity,
            "node": vars(this_node()),
            "process": vars(DEAD),
            "directory": str(self.directory),
            "started": "2026-01-01T00:00:00+00:00",
            "allocation": None,
            "locks": [],
            "queues": ["q"],
            "heartbeat": 3,
            "heartbeat_interval": HEARTBEAT,
        }
        write_json(path, {**state, **fields}, age)
        return path

    def worker(self, number: int, age: float = LONG_AGO, **fields: Any) -> Path:
        directory = self.machine.workers / str(number)
        moment = "2026-01-01T00:00:00.000000+00:00"
        state = {
            "version": 2,
            "worker": number,
            "state": "running",
            "process": vars(DEAD),
            "node": vars(this_node()),
            "queues": ["q"],
            "capacity": {"cores": 1, "memory_mb": 1000, "gpus": 0},
            "started": moment,
            "updated": moment,
            "heartbeat": 4,
            "running": {},
            "heartbeat_interval": HEARTBEAT,
        }
        write_json(directory / "worker.json", {**state, **fields}, age)
        os.mkfifo(directory / "bell")
        (self.machine.queues / "q/bells" / str(number)).touch()
        return directory / "worker.json"

    def files(self) -> dict[str, tuple[int, bytes]]:
        """All names, with what the files hold."""
        return {
            str(path): (path.lstat().st_ino, path.read_bytes() if path.is_file() else b"")
            for path in self.machine.directory.rglob("*")
            if self.machine.locks.directory not in (path, path.parent)
        }

    def check(self) -> None:
        """Nothing that the dead left is lost, and no reader meets an old name."""
        assert json.loads((self.machine.directory / "locks.json").read_text())["version"] == 2
        assert not json.loads((self.machine.directory / "locks.json").read_text()).get("migrating")
        names = {path.name for path in self.machine.directory.rglob("*")}
        assert names.isdisjoint({"bell", "bells"})
        assert last_adopter(self.machine, "first")[1] is not None
        assert read_presumed_dead(self.machine, 1).observer == "n1"
        assert [worker.describe() for worker in list_workers(self.machine)] == ["lost", "lost"]
        inbox = Inbox.create(self.machine, str(self.directory))
        orphans = Orphans.find(self.machine, str(self.directory), inbox.identity)
        assert set(orphans.controllers) == {"first", "second"}
        assert sorted(view.job for view in Queue(self.machine, "q").waiting()) == [0, 1, 2]
        assert orphans.unread() == 1
        (new,) = Queue(self.machine, "q").submit([Ticket("new", ("true",), str(self.directory))])
        assert new.job == 4
        claims = Queue(self.machine, "q").claim(2, lambda _: "take", limit=9)
        assert [claim.ticket.job for claim in claims] == [0, 1, 2, 4]


DEAD = dead_process()
RESULT = {
    "version": 2,
    "attempt": 1,
    "nonce": "d3",
    "reason": "success",
    "exit_status": 0,
    "signal": None,
    "started": "2026-01-01T00:00:00.000000+00:00",
    "ended": "2026-01-01T00:00:01.000000+00:00",
    "log": "/log",
    "detail": "",
    "outputs": {},
}


@pytest.fixture
def earlier(machine: MachinePaths, tmp_path: Path) -> Earlier:
    return Earlier(machine, tmp_path)


def test_what_an_earlier_release_left_is_found_after_the_first_command(earlier: Earlier) -> None:
    settle_locks(earlier.machine)
    earlier.check()


def test_a_machine_is_migrated_by_whatever_first_takes_one_of_its_locks(earlier: Earlier) -> None:
    Queue(earlier.machine, "q").recover()
    earlier.check()


def test_a_migration_that_is_killed_at_any_step_is_completed_by_the_next_process(
    tmp_path: Path,
) -> None:
    numbers = itertools.count()
    stages: list[Earlier] = []

    def stage() -> Scene:
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        stages.append(Earlier(Root(directory / "root").machine("local"), directory))
        return lambda: settle_locks(stages[-1].machine)

    for ending in deaths(stage, stride=4):
        machine = stages[-1].machine
        repaired = run_scene(lambda: settle_locks(machine))  # noqa: B023
        assert repaired.ok, (ending, repaired.error)
        stages[-1].check()
    assert len(stages) > 5


def test_two_processes_that_migrate_at_one_time_do_it_once(earlier: Earlier) -> None:
    code = "import sys; from pathlib import Path; from snakemake_kochi.paths import MachinePaths\n"
    code += "from snakemake_kochi.locks import settle_locks\n"
    code += "settle_locks(MachinePaths('local', Path(sys.argv[1])))"
    words = [sys.executable, "-c", code, str(earlier.machine.directory)]
    both = [subprocess.Popen(words) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    earlier.check()


@pytest.fixture
def sleeper() -> Iterator[ProcessIdentity]:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        yield identity
    finally:
        process.kill()
        process.wait()


Use = Callable[[Earlier, ProcessIdentity], object]
USES: dict[str, tuple[Use, str, str]] = {
    "a run here": (
        lambda earlier, process: earlier.controller("third", process=vars(process)),
        "a run in ",
        "kill -INT {pid}",
    ),
    "a worker here": (
        lambda earlier, process: earlier.worker(2, process=vars(process)),
        "worker 2 on ",
        "kill {pid}",
    ),
    "a run on another host": (
        lambda earlier, _: earlier.controller("third", 0.0, node=ELSEWHERE, heartbeat_interval=5),
        " on n7 ",
        "on n7: kill -INT",
    ),
    "a worker on another host": (
        lambda earlier, _: earlier.worker(2, 0.0, node=ELSEWHERE, heartbeat_interval=5),
        "worker 2 on n7",
        "wait a minute",
    ),
    "a run that gives no signs of life": (
        lambda earlier, _: earlier.controller("third", node=ELSEWHERE, heartbeat=None),
        " on n7 ",
        "controllers/third/controller.json",
    ),
}


@pytest.mark.parametrize("use", USES)
def test_while_the_earlier_release_is_used_nothing_is_changed_and_its_process_is_named(
    earlier: Earlier, sleeper: ProcessIdentity, use: str
) -> None:
    begin, what, hint = USES[use]
    begin(earlier, sleeper)
    before = earlier.files()
    for call in (settle_locks, find_lock_settings):
        with pytest.raises(KochiError, match="in use by an earlier release") as caught:
            call(earlier.machine)
        assert what in caught.value.message and str(earlier.machine.directory) in str(caught.value)
        assert hint.format(pid=sleeper.pid) in str(caught.value.hint)
    assert earlier.files() == before


def test_a_silent_process_on_another_host_is_watched_and_finds_its_presumed_death(
    earlier: Earlier,
) -> None:
    earlier.worker(2, node=ELSEWHERE)
    earlier.controller("third", node=ELSEWHERE)
    settle_locks(earlier.machine)
    # It looks for these with each heartbeat.
    assert json.loads((earlier.machine.workers / "2/lost.json").read_text())["worker"] == 2
    assert json.loads((earlier.machine.controllers / "third/heir-1.json").read_text())["heir"] == ""
    # Others have presumed the worker dead, and nobody has adopted the run yet.
    assert read_presumed_dead(earlier.machine, 2).stood_still > 0
    assert last_adopter(earlier.machine, "third") == (0, None)


def test_a_process_whose_heartbeat_moves_while_it_is_watched_is_alive(
    earlier: Earlier, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = earlier.worker(2, node=ELSEWHERE, heartbeat_interval=1)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        path.touch()

    monkeypatch.setattr(migration, "time", SimpleNamespace(sleep=wait))
    with pytest.raises(KochiError, match="worker 2 on n7"):
        settle_locks(earlier.machine)
    assert waits == [2]


def test_after_a_person_removed_the_settings_of_the_locks_files_are_migrated_too(
    earlier: Earlier,
) -> None:
    (earlier.machine.directory / "locks.json").unlink()
    find_lock_settings(earlier.machine)
    earlier.check()


def test_files_of_a_newer_release_are_left_alone_without_advice_to_remove_them(
    earlier: Earlier,
) -> None:
    (earlier.machine.directory / "locks.json").write_text(LOCKS.replace("1,", "3,", 1))
    before = earlier.files()
    for call in (settle_locks, find_lock_settings):
        with pytest.raises(DamagedFileError, match="written by a newer snakemake_kochi") as caught:
            call(earlier.machine)
        assert "rm " not in str(caught.value) and "Install a newer" in str(caught.value)
    assert earlier.files() == before


def test_commands_that_only_show_work_before_the_migration_and_change_nothing(
    earlier: Earlier, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = earlier.machine.directory.parent.parent
    environment = {**os.environ, "KOCHI_ROOT": str(root)}
    before = earlier.files()
    for words in ("jobs", "jobs -t", "workers -a", "queues", "job 2"):
        done = subprocess.run(
            [sys.executable, "-m", "snakemake_kochi.cli", "show", *words.split()],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert earlier.files() == before


def test_a_launch_of_an_earlier_release_is_understood(machine: MachinePaths) -> None:
    paths = machine.launch("20260101-000000000000-abcdef")
    command = {"identity": "x", "name": "run", "directory": "/", "command": ["true"]}
    write_json(paths.launch, {"version": 1, **command, "time": "2026-01-01", "job_name": None})
    processes = {"attendant": vars(DEAD), "run": vars(DEAD), "heartbeat": 1}
    write_json(paths.process, {"version": 1, "node": vars(this_node()), **processes})
    assert look_at(paths).state == "killed"
    shutil.rmtree(paths.directory)
