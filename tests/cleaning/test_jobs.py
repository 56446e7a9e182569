"""What `kochi clean` deletes of jobs, runs and workers, and what must hold for the others."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cleaning.stage import dead_process, make_old
from workers_site import QUEUE

from snakemake_kochi.cleaning.jobs import all_tickets, clean_tickets
from snakemake_kochi.cleaning.removal import Freed, Removal
from snakemake_kochi.paths import Root
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.project.clean_rules import DAY, Rules
from snakemake_kochi.queue.by_hand import submit
from snakemake_kochi.queue.runs import facts_of_run
from snakemake_kochi.queue.views import find_job, list_jobs
from snakemake_kochi.tickets import history
from snakemake_kochi.tickets.claims import Claims, WorkerLife
from snakemake_kochi.tickets.names import Name
from snakemake_kochi.tickets.run import Run
from snakemake_kochi.tickets.ticket import Ticket, now
from snakemake_kochi.tickets.watching import FencedError

ELSEWHERE = replace(this_node(), host="elsewhere", machine="m", boot="b")


class Machine:
    """A machine whose runs and workers are those of this process, unless they seem to be dead."""

    def __init__(self, root: Path) -> None:
        self.paths = Root(root).machine("local")
        self.paths.directory.mkdir(parents=True)
        self.layout = self.paths.layout

    def clean(
        self, *needed: str, is_dry: bool = False, **rules: Any
    ) -> tuple[dict[str, Freed], list[str]]:
        removal = Removal(is_dry, time.time(), time.monotonic() + 60)
        clean_tickets(self.paths, Rules(**rules), removal, needed)
        return removal.freed, removal.faults

    def run(self, process: ProcessIdentity | None = None, node: Node | None = None) -> Run:
        own = process or ProcessIdentity.of(os.getpid())
        assert own is not None
        facts = {"node": asdict(node or this_node()), "process": asdict(own)}
        return Run.begin(self.layout, "/work", facts_of_run(None, None) | facts)

    def worker(
        self, process: ProcessIdentity | None = None, node: Node | None = None
    ) -> WorkerLife:
        own = process or ProcessIdentity.of(os.getpid())
        assert own is not None
        number = 1 + max(map(int, self.workers()), default=0)
        facts = {
            "node": asdict(node or this_node()),
            "process": asdict(own),
            "started": now(),
            "queues": [QUEUE],
            "capacity": {"cores": 1, "memory_mb": 1},
            "until": None,
            "controller": None,
            "allocation": None,
            "began": 0.0,
        }
        return WorkerLife(self.layout, str(number), facts)

    def workers(self) -> set[str]:
        directory = Path(self.layout.workers)
        return set(os.listdir(directory)) if directory.exists() else set()

    def submit(self, run: Run, *names: str) -> None:
        run.submit(QUEUE, {name: json.dumps(_ticket(name).to_dict()).encode() for name in names})

    def by_hand(self, *names: str) -> list[int]:
        return [submit(self.paths, QUEUE, _ticket(name)).job for name in names]  # type: ignore

    def hold(self, life: WorkerLife, count: int = 100) -> list[Name]:
        claims = Claims(self.layout, QUEUE, life)
        return claims.claim(lambda name, read, held: len(held) < count or None)

    def end(self, count: int = 100) -> None:
        """End the next jobs, each with a line in its log."""
        life = self.worker(dead_process())
        claims = Claims(self.layout, QUEUE, life)
        for name in claims.claim(lambda name, read, held: len(held) < count or None):
            Path(self.layout.run(name.run).log(name)).write_text("said\n")
            claims.finish(name, "success", {"exit_status": 0})
        list_jobs(self.paths, ended=True)  # notes ends of jobs by hand

    def over(self, run: Run) -> None:
        run.collect()
        run.fold()
        run.end()

    def jobs(self) -> list[Any]:
        return sorted(str(view.job) for view in list_jobs(self.paths, ended=True))

    def runs(self) -> set[str]:
        return set(os.listdir(self.layout.runs))

    def files(self) -> list[str]:
        return sorted(map(str, self.paths.directory.rglob("*")))

    def age(self, *parts: str, days: float = 40) -> None:
        make_old(Path(*(parts or (self.layout.directory,))), days)


def _ticket(name: str) -> Ticket:
    return Ticket(name=name, command=("true",), directory="/")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_old_job_by_hand_goes_with_its_log_and_a_younger_one_stays(machine: Machine) -> None:
    old, young, waiting, _ = machine.by_hand("old", "young", "waiting", "last")
    machine.end(2)
    machine.age()
    for path in (machine.layout.run(young).directory, *_noted(machine, young)):
        make_old(Path(path), 0)
    freed, faults = machine.clean()
    assert (freed["jobs"].count, faults) == (1, [])
    assert machine.jobs() == [str(young), str(waiting), "4"]
    assert not _noted(machine, old)
    assert find_job(machine.paths, young).output == b"said\n"


def _noted(machine: Machine, number: int) -> list[Path]:
    return list(Path(machine.layout.history).glob(f"{number}-{number}.*"))


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_dry_run_says_the_same_and_deletes_nothing(machine: Machine, is_noted: bool) -> None:
    run = machine.run()
    machine.submit(run, *"abc")
    machine.end()
    machine.over(run)
    dead = machine.run(dead_process())
    machine.submit(dead, "of a killed run")
    machine.by_hand("one", "two")
    if is_noted:
        machine.end()
    else:
        claims = Claims(machine.layout, QUEUE, life := machine.worker(dead_process()))
        for name in claims.claim(lambda name, read, held: True):
            claims.finish(name, "success")
        assert life.name
    machine.age()
    before = machine.files()
    plan, _ = machine.clean(is_dry=True)
    assert machine.files() == before
    done, faults = machine.clean()
    assert (plan, faults) == (done, [])
    assert {kind: freed.count for kind, freed in done.items()} == {
        "jobs": 3 + 2,
        "runs": 2,
        "workers": 1,
    }
    # The highest number stays.
    assert machine.runs() == {"4"}
    assert machine.clean() == ({}, [])


def test_the_jobs_of_a_run_go_together_and_its_record_when_that_is_old(machine: Machine) -> None:
    run = machine.run()
    machine.submit(run, "a", "b")
    machine.end()
    machine.over(run)
    machine.run()
    machine.age(run.paths.directory)
    machine.clean(runs=50 * DAY, keep=("jobs:b",))
    assert machine.jobs() == ["1.1", "1.2"]
    machine.clean("1.2", runs=50 * DAY)  # of a result that is not committed yet
    assert machine.jobs() == ["1.1", "1.2"]
    freed, _ = machine.clean(runs=50 * DAY)
    assert freed["jobs"].count == 2
    assert machine.jobs() == []
    assert machine.runs() == {"1", "2"}
    assert not Path(run.paths.folded).exists()
    machine.clean(keep=("runs:/wor*",))
    assert machine.runs() == {"1", "2"}
    machine.clean()
    assert machine.runs() == {"2"}


def test_a_run_that_lives_or_has_jobs_or_an_adopter_stays(machine: Machine) -> None:
    """However old its files are."""
    alive, elsewhere = machine.run(), machine.run(node=ELSEWHERE)
    has_jobs, adopted = machine.run(dead_process()), machine.run(dead_process())
    machine.submit(has_jobs, "waits")
    adopter = machine.run()
    os.rename(adopted.paths.token("own"), adopted.paths.token(f"own.{adopter.number}"))
    machine.run(dead_process())
    machine.run()
    machine.age()
    machine.age(elsewhere.paths.directory, days=6)
    freed, _ = machine.clean(runs=5 * DAY)
    assert freed["runs"].count == 1
    assert machine.runs() == {"1", "2", "3", "4", "5", "7"}
    machine.age(elsewhere.paths.directory)
    machine.clean()
    assert machine.runs() == {"1", "3", "4", "5", "7"}
    # Its process, which slept, ends before it does anything with jobs.
    with pytest.raises(FencedError):
        elsewhere.beat()
    alive.beat()


def test_the_end_of_a_needed_job_stays_in_the_journal_of_whoever_noted_it(machine: Machine) -> None:
    dead = machine.run(dead_process())
    machine.submit(dead, "a")
    machine.end()
    follower = Run.begin(machine.layout, "/work", _facts_of(dead), lambda facts: True)
    assert not follower.adopt()
    machine.over(follower)
    machine.run()
    machine.age(dead.paths.directory)
    machine.age(follower.paths.directory)
    machine.clean("1.1")
    assert machine.runs() == {"1", "2", "3"}
    assert [view.job for view in history.ended(machine.layout)] == ["1.1"]
    machine.clean()
    assert machine.runs() == {"3"}


def _facts_of(run: Run) -> Any:
    return json.loads(Path(run.paths.facts).read_text())["facts"]


def test_a_job_by_hand_that_waits_runs_or_whose_submission_goes_on_stays(machine: Machine) -> None:
    machine.by_hand("runs", "waits", "unfinished", "last")
    machine.hold(machine.worker(), 1)
    unfinished = Path(machine.layout.run(3).token("hand"))
    shard = Path(machine.layout.queue(QUEUE).waiting, "3.1-1")
    shard.rename(unfinished / "1-1.abc")
    machine.age()
    make_old(unfinished.parent, 0.5)
    machine.clean(jobs=0.0)
    assert machine.runs() == {"1", "2", "3", "4"}
    make_old(unfinished.parent, 2)
    machine.clean(jobs=0.0)
    assert machine.runs() == {"1", "2", "4"}
    assert {ticket.name for ticket in all_tickets(machine.paths)} == {"runs", "waits", "last"}


def test_a_rule_keeps_jobs_by_name_or_number_also_of_those_that_were_joined(
    machine: Machine,
) -> None:
    numbers = machine.by_hand("fib_1", "sum", "last")
    machine.end(2)
    machine.age()
    machine.clean(keep=("jobs:fib_*", "builds:sum"))
    assert machine.jobs() == ["1", "3"]
    machine.clean(keep=("1",))
    assert machine.jobs() == ["1", "3"]
    # As `tidy` joins them.
    joined = Path(machine.layout.history, "1-2.abc.jsonl")
    _noted(machine, 1)[0].rename(joined)
    folded = Path(machine.layout.history, "folded")
    folded.mkdir()
    (folded / "1-2.def").write_text("{}\n")
    make_old(folded)
    machine.clean(keep=("jobs:fib_*",))
    assert joined.exists() and (folded / "1-2.def").exists()
    machine.clean()
    assert not joined.exists() and not (folded / "1-2.def").exists()
    assert numbers == [1, 2, 3]


def test_a_worker_goes_when_it_has_left_or_died_and_holds_no_ticket(machine: Machine) -> None:
    machine.by_hand("job")
    alive, died = machine.worker(), machine.worker(dead_process())
    holder, left = machine.worker(dead_process()), machine.worker()
    machine.hold(holder)
    Path(left.paths.left).write_text('{"reason": "done", "ended": "now"}')
    silent, beating = (machine.worker(node=ELSEWHERE) for _ in range(2))
    young, last = machine.worker(dead_process()), machine.worker(dead_process())
    mark = Path(machine.layout.queue(QUEUE).serving(died.name))
    mark.touch()
    machine.age(machine.layout.workers)
    machine.age(beating.paths.directory, days=6)
    machine.age(young.paths.directory, days=0)
    freed, _ = machine.clean(runs=10 * DAY)
    kept = {each.name for each in (alive, holder, beating, young, last)}
    assert (machine.workers(), freed["workers"].count) == (kept, 3)
    assert not mark.exists()
    machine.clean(runs=0.0)
    assert machine.workers() == kept - {young.name}
    # One that slept until its files were deleted takes nothing any more.
    with pytest.raises(FencedError):
        silent.look()
    alive.look()


def test_the_queue_of_a_run_that_is_over_goes_unless_a_ticket_waits_in_it(machine: Machine) -> None:
    for number in (7, 8):
        Path(machine.layout.queue(f"run-{number}").waiting).mkdir(parents=True)
        Path(machine.layout.queue(f"run-{number}").running).mkdir()
    Path(machine.layout.queue("run-8").waiting, "8.1.a2.l1").touch()
    machine.clean()
    assert os.listdir(machine.layout.queues) == ["run-8"]


def test_what_a_killed_clean_up_and_killed_writers_left_goes(machine: Machine) -> None:
    machine.run()
    for name, days in (("new.abc", 2.0), ("new.def", 0.0), ("gone.abc", 2.0), (".removed-1-2", 0)):
        Path(machine.layout.runs, name).mkdir()
        make_old(Path(machine.layout.runs, name), days)
    machine.clean()
    assert machine.runs() == {"1", "new.def"}
