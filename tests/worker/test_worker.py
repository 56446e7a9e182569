"""A worker on tickets, with its processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from workers_site import QUEUE, Site, pid_in, until

from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.paused import BATCH, EXPERIMENT, PausedBatch, pause, resume
from snakemake_kochi.queue.spreading import SPREAD
from snakemake_kochi.tickets.hand import cancel
from snakemake_kochi.tickets.names import Name
from snakemake_kochi.tickets.ticket import Kind, Resources
from snakemake_kochi.worker.runners import Forks


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_ends_of_jobs(site: Site) -> None:
    site.worker()
    end = site.end_of("echo hello; echo data > out", outputs=("out",))
    assert end.name == Name(1, 1, 1, 0, "1", "success")
    assert site.log_of(end) == "hello\n"
    details = end.line["details"]
    assert details["outputs"] == {"out": [(site.work / "out").stat().st_mtime_ns, 5]}
    assert (details["exit_status"], details["runner"]) == (0, "shell")
    assert details["started"] < details["ended"]
    end = site.end_of("exit 3")
    assert (end.name.state, end.line["details"]["exit_status"]) == ("failed", 3)
    end = site.end_of("kill -SEGV $$")
    assert (end.name.state, end.line["details"]["signal"]) == ("signal", signal.SIGSEGV)
    end = site.end_of("echo no", directory=str(site.work / "missing"))
    assert (end.name.state, end.line["details"]["exit_status"]) == ("failed", 126)
    assert "cannot enter the directory" in site.log_of(end)


def test_a_command_without_a_shell_text(site: Site) -> None:
    site.worker()
    end = site.end_of("echo $KOCHI_RUNNER $KOCHI_JOB_ID $KOCHI_ATTEMPT", shell=None)
    assert site.log_of(end) == "command 1.1 1\n"
    assert end.line["details"]["runner"] == "command"


def test_a_request_larger_than_a_message(site: Site) -> None:
    site.worker()
    end = site.end_of(f"echo {'x' * 100_000} | wc -c", environment={"LARGE": "y" * 100_000})
    assert site.log_of(end) == "100001\n"


def test_jobs_run_beside_each_other_as_they_fit(site: Site) -> None:
    site.worker(cores=2)
    site.submit(*(f"echo {n} >> begun; until test -e go; do sleep 0.01; done" for n in range(3)))
    begun = site.work / "begun"
    until(lambda: begun.exists() and len(begun.read_text().splitlines()) == 2)
    assert len(site.running()) == 2
    (site.work / "go").touch()
    assert [end.name.state for end in site.collect(3)] == ["success"] * 3


def test_a_ticket_that_never_fits_is_left_to_others(site: Site) -> None:
    site.worker(cores=2)
    site.submit("echo large", resources={"cores": 3})
    site.submit("echo small")
    (end,) = site.collect()
    assert end.key == "echo small"
    assert "3 cores needed, 2 available" in site.logs()
    site.worker(cores=4)
    (end,) = site.collect()
    assert (end.key, end.name.worker, end.name.attempt) == ("echo large", "2", 1)


def test_time_limit(site: Site) -> None:
    site.worker(grace=0.2)
    end = site.end_of("trap '' TERM; sleep 60", resources={"runtime_seconds": 1})
    assert end.name.state == "timeout"
    assert end.line["details"]["detail"] == "ran for longer than its 1 second"


def test_cancel(site: Site) -> None:
    site.worker()
    site.submit("echo $$ > pid; sleep 60")
    process = pid_in(site.work / "pid")
    assert not cancel(site.layout, QUEUE, 1, 1)
    (end,) = site.collect()
    assert end.name.state == "cancelled"
    assert not process.is_alive()
    assert cancel(site.layout, QUEUE, 1, 1)


def test_what_a_job_leaves_behind_is_ended(site: Site) -> None:
    site.worker()
    left = "setsid sh -c 'trap \"\" TERM; echo $$ > pid; sleep 60; sleep 60' > /dev/null 2>&1 &"
    site.submit("sleep 3; echo other")  # so that nobody can say whose the orphan is by counting
    site.submit(f"{left} until test -s pid; do sleep 0.01; done")
    ends = site.collect(2)
    assert [end.name.state for end in ends] == ["success"] * 2
    assert not ProcessIdentity.of(int((site.work / "pid").read_text()))


def test_a_success_waits_for_its_own_pipeline(site: Site) -> None:
    site.worker()
    end = site.end_of("echo data > >(sleep 1; cat > out)", outputs=("out",))
    assert end.name.state == "success"
    assert end.line["details"]["outputs"]["out"][1] == 5


def test_a_worker_that_is_told_to_leave_puts_its_jobs_back(site: Site) -> None:
    first = site.worker(grace=1.0)
    site.submit("echo $$ > pid.$KOCHI_ATTEMPT; test $KOCHI_ATTEMPT = 2 || sleep 60")
    process = pid_in(site.work / "pid.1")
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    assert not process.is_alive()
    assert site.running() == []
    site.worker()
    (end,) = site.collect()
    assert (end.name.attempt, end.name.losses, end.name.state) == (2, 0, "success")
    assert [each["details"]["reason"] for each in end.line["earlier"]] == ["drained"]


def test_release(site: Site) -> None:
    worker = site.worker()
    site.submit("until test -e go; do sleep 0.01; done")
    until(site.running)
    Path(site.layout.worker("1").release).write_text("finish\n")
    site.wake_worker("1")
    until(lambda: "released" in site.logs())
    site.submit("echo later")
    (site.work / "go").touch()
    (end,) = site.collect()
    assert end.name.state == "success"
    assert worker.wait(30) == 0
    assert site.running() == []


def test_nothing_outlives_a_killed_worker(site: Site) -> None:
    supervisor = site.worker()
    site.submit("setsid sleep 60 & echo $! > left; echo $$ > pid; sleep 60")
    main, left = pid_in(site.work / "pid"), pid_in(site.work / "left")
    (worker,) = [pid for pid in children(supervisor.pid) if pid != main.pid]
    os.kill(worker, signal.SIGKILL)
    assert supervisor.wait(30) == -signal.SIGKILL
    assert not main.is_alive()
    assert not left.is_alive()


def test_jobs_of_a_killed_supervisor_go_to_another_worker_at_once(site: Site) -> None:
    supervisor = site.worker()
    site.submit(
        "setsid sleep 60 & echo $! > left; echo $$ > pid; test $KOCHI_ATTEMPT = 2 || sleep 60"
    )
    left = pid_in(site.work / "left")
    pid_in(site.work / "pid")
    supervisor.kill()
    site.worker()
    (end,) = site.collect()
    assert (end.name.attempt, end.name.losses, end.name.state) == (2, 1, "success")
    assert not left.is_alive()


def test_a_worker_leaves_at_once_when_its_parent_is_gone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "600")  # it looks for much else then
    parent = os.fork()
    if parent == 0:
        time.sleep(60)
        os._exit(0)
    worker = site.worker(parent=parent)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert worker.wait(30) == 0


def test_a_worker_that_does_not_stay_leaves_when_nothing_is_left(site: Site) -> None:
    site.submit("echo 1", "echo 2", "echo 3")
    worker = site.worker(stay=False)
    assert len(site.collect(3)) == 3
    assert worker.poll() is None  # the run may submit more
    site.run.end()
    assert worker.wait(30) == 0
    assert "nothing to do" in Path(site.layout.worker("1").left).read_text()


def test_a_damaged_ticket_ends(site: Site) -> None:
    site.run.submit(QUEUE, {"empty": b"", "text": b"{", "no command": b'{"name": "x"}\n'})
    site.worker()
    ends = {end.key: end for end in site.collect(3)}
    assert {end.name.state for end in ends.values()} == {"failed"}
    assert "key 'resources' is missing" in ends["no command"].line["details"]["detail"]


def test_tickets_like_those_that_a_worker_has_had_come_last(site: Site) -> None:
    for script, label in (("echo 1", "a"), ("echo 2", "a"), ("echo 3", "b")):
        site.submit(script, labels={SPREAD: label})
    site.worker(cores=1)
    ends = sorted(site.collect(3), key=lambda end: str(end.line["details"]["started"]))
    assert [end.key for end in ends] == ["echo 1", "echo 3", "echo 2"]


def test_a_worker_begins_the_jobs_for_which_it_was_requested_before_others(site: Site) -> None:
    for script, seconds in (("echo 1", 60), ("echo 2", 60), ("echo 3", 36_000), ("echo 4", 60)):
        site.submit(script, resources={"runtime_seconds": seconds})
    long = Resources(runtime_seconds=36_000)
    site.worker(cores=1, first=(Kind(long, long),))
    ends = sorted(site.collect(4), key=lambda end: str(end.line["details"]["started"]))
    assert [end.key for end in ends] == ["echo 3", "echo 1", "echo 2", "echo 4"]


def test_a_worker_keeps_room_for_the_jobs_for_which_it_was_requested(site: Site) -> None:
    site.submit("until test -e go; do sleep 0.01; done", resources={"runtime_seconds": 600})
    site.submit("echo small")
    site.submit("echo large", resources={"cores": 2, "runtime_seconds": 600})
    least = Resources(runtime_seconds=600)
    site.worker(cores=2, first=(Kind(least, Resources(cores=2, runtime_seconds=600)),))
    until(site.running)
    time.sleep(1)
    assert len(site.running()) == 1
    (site.work / "go").touch()
    ends = sorted(site.collect(3), key=lambda end: str(end.line["details"]["started"]))
    assert [end.key for end in ends[1:]] == ["echo large", "echo small"]


def test_jobs_of_a_paused_batch_wait_until_it_goes_on(site: Site) -> None:
    machine = site.settings().paths
    batch = PausedBatch(str(site.work), "sum.yaml", "all")
    assert pause(machine, batch)
    site.submit("echo 1", labels={EXPERIMENT: "sum.yaml", BATCH: "all"})
    site.submit("echo 2", labels={EXPERIMENT: "sum.yaml", BATCH: "other"})
    site.worker(cores=1)
    assert [end.key for end in site.collect()] == ["echo 2"]
    assert resume(machine, batch)
    assert [end.key for end in site.collect()] == ["echo 1"]


def test_a_worker_serves_a_further_queue_that_it_is_told_of(site: Site) -> None:
    site.worker()
    site.run.submit("further", {"echo 1": site.ticket("echo 1")})
    Path(site.layout.worker("1").serve("further")).touch()
    site.wake_worker("1")
    assert [end.name.state for end in site.collect()] == ["success"]


def test_a_job_that_begins_while_another_one_is_tidied_up_is_no_leftover_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = ProcessIdentity.of(os.getpid())
    assert here is not None
    jobs = ["the ended one"]

    def orphans(_: Forks) -> list[ProcessIdentity]:
        jobs.append("one that begins, whose process the worker does not know yet")
        return [here]

    monkeypatch.setattr(Forks, "_orphans", orphans)
    monkeypatch.setattr("snakemake_kochi.worker.runners.find_job_processes", lambda *_: [])
    forks = object.__new__(Forks)
    assert forks.left(here, "nonce", lambda: len(jobs) == 1) == []
    jobs.clear()
    assert forks.left(here, "nonce", lambda: len(jobs) == 1) == [here]
