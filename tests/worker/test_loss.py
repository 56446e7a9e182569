"""Workers that died or seem to be dead on other nodes, of which only the files are visible."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import replace

import pytest

from snakemake_kochi.files import to_json
from snakemake_kochi.processes import Node, ProcessIdentity
from snakemake_kochi.queue import Capacity, Observer, Queue, find_worker, list_workers, recover
from snakemake_kochi.queue.result import find_attempt
from snakemake_kochi.queue.workers import WorkerState
from tests.worker.conftest import descendants_of, is_running

# Seconds. Others presume a worker dead after 12 heartbeats, and its supervisor ends it after 6: on
# a busy computer, a worker may not come to one for a second or two.
HEARTBEAT = 0.5
QUICK = {"stay": True, "heartbeat": HEARTBEAT, "idle_wait": 0.1}


def ended_attempt(site, job, attempt):
    return json.loads(site.machine.job(job).ended(attempt).read_text())


def host_pid_of_job(worker_above, namespace_pid):
    """A job's main process, with its number on this node."""
    for pid in descendants_of(worker_above.pid):
        with open(f"/proc/{pid}/status") as status:
            numbers = next(line for line in status if line.startswith("NSpid:")).split()
        if numbers[-1] == namespace_pid:
            return pid
    raise AssertionError(f"process {namespace_pid} is not below {worker_above.pid}")


def test_the_ticket_of_a_worker_that_died_on_another_node_is_requeued(site):
    site.submit("[ -e first ] || { echo > first; sleep 1000; }; hostname")
    elsewhere = site.start_elsewhere(**QUICK)
    site.wait_for("first")
    assert find_worker(site.machine, 0).node.host == "elsewhere"
    assert not find_worker(site.machine, 0).is_on_this_node
    site.start(**QUICK)
    # A dead worker would be presumed dead within this time.
    beat = find_worker(site.machine, 0).heartbeat
    site.wait_until(lambda: find_worker(site.machine, 0).heartbeat > beat + 15)
    assert (site.job(0).worker, site.job(0).attempt) == (0, 1)
    site.kill_everything(elsewhere)
    result = site.ended(0).result
    assert (result.ok, result.attempt, result.worker) == (True, 2, 1)
    assert ended_attempt(site, 0, 1)["reason"] == "lost"
    presumed = json.loads(site.machine.worker(0).presumed_dead.read_text())
    assert (presumed["worker"], presumed["observer"]) == (0, os.uname().nodename)
    assert presumed["stood_still"] >= 12 * HEARTBEAT
    assert find_worker(site.machine, 0).describe() == "lost"


@pytest.mark.parametrize("job_goes_on", [False, True])
def test_a_worker_that_wakes_up_after_it_was_presumed_dead_changes_nothing(site, job_goes_on):
    script = "[ -e first ] && exit 0; echo $$ > first; while [ ! -e go ]; do sleep 0.1; done; "
    site.submit(script + "echo of the first; exit 5")
    elsewhere = site.start_elsewhere(**QUICK)
    job = host_pid_of_job(elsewhere, site.wait_for("first").strip())
    supervisor = descendants_of(elsewhere.pid)[0]
    free = {job, *descendants_of(job)} if job_goes_on else set()
    frozen = [pid for pid in descendants_of(elsewhere.pid) if pid not in free]
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):  # a `sleep` of the job
            os.kill(pid, signal.SIGSTOP)
    site.start(**QUICK)
    result = site.ended(0).result
    assert (result.ok, result.attempt, result.worker) == (True, 2, 1)
    if job_goes_on:
        (site.directory / "go").touch()
        site.wait_until(lambda: "of the first" in site.log(0))
    for pid in reversed(frozen):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert elsewhere.wait() == 1, site.machine.worker(0).log.read_text()
    assert not is_running(job) and not is_running(supervisor)
    state = find_worker(site.machine, 0)
    assert (state.state, state.reason) == ("left", f"presumed dead by {os.uname().nodename}")
    late = list(site.machine.job(0).directory.glob("late-*.json"))
    assert [json.loads(path.read_text())["exit_status"] for path in late] == [5] * job_goes_on
    assert site.job(0).result == result
    assert Queue(site.machine, "q").waiting() == Queue(site.machine, "q").running() == []


def test_a_worker_that_was_presumed_dead_ends_its_jobs_and_leaves_their_tickets_alone(site):
    site.submit("trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done", "echo never")
    worker = site.start(cores=1, heartbeat=1.0, grace=10_000, stderr=-3)
    pid = site.wait_for("pid").strip()
    presumed = {"worker": 0, "observer": "n7", "stood_still": 60, "time": "2020-01-01"}
    site.machine.worker(0).presumed_dead.write_bytes(to_json({"version": 2, **presumed}))
    assert worker.wait() == 1
    assert not is_running(pid)
    assert [(view.job, view.worker) for view in Queue(site.machine, "q").running()] == [(0, 0)]
    assert not site.machine.job(0).ended(1).exists()
    assert find_worker(site.machine, 0).reason == "presumed dead by n7"
    assert site.job(1).state == "waiting"


HANGING_START = """
import os, time
from snakemake_kochi.queue.attempt_file import AttemptFile
begin = AttemptFile.begin
def hanging(*arguments):
    open("there", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
    time.sleep(3.1)  # three heartbeats: less than the supervisor endures
    return begin(*arguments)
AttemptFile.begin = hanging
"""


def test_a_job_whose_start_hung_until_its_worker_was_presumed_dead_does_not_begin(site):
    site.submit("echo > ran; sleep 100")
    worker = site.start_changed(HANGING_START, cores=1, heartbeat=1, cwd=site.directory)
    site.wait_until((site.directory / "there").exists)
    presumed = {"worker": 0, "observer": "n7", "stood_still": 60, "time": "2020-01-01"}
    site.machine.worker(0).presumed_dead.write_bytes(to_json({"version": 2, **presumed}))
    (site.directory / "go").touch()
    assert worker.wait() == 1
    assert "job 0 has been given to others" in site.machine.worker(0).log.read_text()
    assert not (site.directory / "ran").exists()


def test_an_attempt_that_was_given_up_is_not_begun(site):
    site.submit("echo ran >> ran")
    directory = site.machine.job(0).directory
    directory.mkdir(parents=True, mode=0o700)
    site.machine.job(0).ended(1).write_text("{}")
    worker = site.start(stay=True, stderr=-3)
    log = site.machine.worker(0).log
    site.wait_until(lambda: log.exists() and "has been given up by others" in log.read_text())
    worker.terminate()
    assert worker.wait() == 0
    assert not (site.directory / "ran").exists()


class Elsewhere:
    """The files of a worker on another node that holds a ticket, and a clock."""

    def __init__(self, site):
        self.site = site
        self.time = 1000.0
        node = Node("elsewhere", "some-id", "some-boot", "pid:[1]")
        self.state = WorkerState(
            0, "running", ProcessIdentity(1, 1), node, ("q",), Capacity(1, 1), "", ""
        )
        site.machine.worker(0).directory.mkdir(parents=True, mode=0o700)
        self.write()
        site.submit("true")
        Queue(site.machine, "q").claim(0, lambda ticket: "take")
        self.observer = Observer(lambda: self.time)

    def write(self, **changes):
        self.state = replace(self.state, **changes)
        self.site.machine.worker(0).state.write_bytes(to_json(self.state.to_dict()))

    def look(self):
        return recover(self.site.machine, "q", self.observer)

    def watch(self, seconds, interval=1.0):
        """Look repeatedly for some seconds; return after how many seconds there was a message."""
        for passed in range(int(seconds / interval) + 1):
            if self.look():
                return passed * interval
            self.time += interval
        return None


@pytest.fixture
def elsewhere(site):
    return Elsewhere(site)


def test_a_worker_is_presumed_dead_after_a_minute_and_its_tickets_go_on_soon_after(elsewhere):
    assert elsewhere.watch(59) is None
    assert not elsewhere.site.machine.worker(0).presumed_dead.exists()
    assert list_workers(elsewhere.site.machine)[0].is_live
    # The worker may just have woken up: it gets the time to see the file and to end its jobs.
    assert elsewhere.watch(60) == pytest.approx(11, abs=2)
    assert list_workers(elsewhere.site.machine)[0].is_lost
    (view,) = Queue(elsewhere.site.machine, "q").waiting()
    assert view.attempt == 2
    assert ended_attempt(elsewhere.site, 0, 1)["detail"] == "its heartbeat stood still"


@pytest.mark.parametrize("updated", ["1970-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"])
def test_the_clock_of_the_other_node_does_not_matter(elsewhere, updated):
    path = elsewhere.site.machine.worker(0).state
    wrong = 0 if updated.startswith("1") else 32_000_000_000
    for beat in range(1, 300):
        elsewhere.write(heartbeat=beat, updated=updated)
        os.utime(path, (wrong, wrong))
        assert elsewhere.look() == []
        elsewhere.time += 5
    assert not elsewhere.site.machine.worker(0).presumed_dead.exists()
    assert elsewhere.watch(100) == pytest.approx(70, abs=6)


def test_an_observer_that_slept_or_hung_does_not_count_its_own_absence(elsewhere):
    assert elsewhere.watch(20) is None
    elsewhere.time += 10_000
    assert elsewhere.look() == []
    assert elsewhere.watch(20) is None
    assert not elsewhere.site.machine.worker(0).presumed_dead.exists()
    for _ in range(3):
        elsewhere.write(heartbeat=elsewhere.state.heartbeat + 1)
        elsewhere.time += 10_000
        assert elsewhere.look() == []


def test_a_new_observer_presumes_nobody_dead(elsewhere):
    assert recover(elsewhere.site.machine, "q") == []
    elsewhere.watch(65)
    assert elsewhere.site.machine.worker(0).presumed_dead.exists()
    assert recover(elsewhere.site.machine, "q") == []


def test_on_a_full_disk_the_time_of_the_file_is_a_sign_of_life(elsewhere):
    path = elsewhere.site.machine.worker(0).state
    for beat in range(40):
        os.utime(path, (beat, beat))
        assert elsewhere.look() == []
        elsewhere.time += 5
    assert not elsewhere.site.machine.worker(0).presumed_dead.exists()


def test_a_worker_without_jobs_may_be_silent_for_longer_until_it_has_one_again(elsewhere):
    elsewhere.observer = Observer(lambda: elsewhere.time, worker=1)
    elsewhere.write(idle_since="some time", heartbeat_interval=20.0)
    for beat in range(1, 30):
        elsewhere.write(heartbeat=beat)
        assert elsewhere.watch(20) is None
    assert not elsewhere.site.machine.worker(0).presumed_dead.exists()
    elsewhere.write(idle_since=None, heartbeat_interval=5.0, heartbeat=30)
    assert elsewhere.watch(60) is None
    assert elsewhere.watch(30) == pytest.approx(15, abs=8)


def rests(site):
    """Whether the worker, whose heartbeats are else 0.5 s apart, has said that they are rare."""
    started = site.machine.worker(0).state.exists()
    return started and find_worker(site.machine, 0).heartbeat_interval == 2.0


def test_a_worker_rests_while_it_has_no_job_and_announces_the_usual_heartbeats_before_the_next(
    site,
):
    site.start(stay=True, heartbeat=HEARTBEAT)
    state = site.machine.worker(0).state
    for job in range(2):
        site.wait_until(lambda: rests(site))
        beat = find_worker(site.machine, 0).heartbeat
        site.wait_until(lambda beat=beat: find_worker(site.machine, 0).heartbeat > beat)
        site.submit(f"cat {state} > seen")
        assert site.ended(job).result.ok
        assert json.loads((site.directory / "seen").read_text())["heartbeat_interval"] == 0.5


def test_a_worker_that_hangs_after_a_rest_is_ended_by_its_supervisor(site):
    supervisor = site.start(stay=True, heartbeat=HEARTBEAT)
    site.wait_until(lambda: rests(site))
    site.submit("echo $$ > pid; exec sleep 1000")
    pid = site.wait_for("pid").strip()
    os.kill(find_worker(site.machine, 0).process.pid, signal.SIGSTOP)
    assert supervisor.wait() == -signal.SIGKILL
    assert not is_running(pid)


def test_the_tickets_of_a_worker_that_left_elsewhere_are_requeued_at_once(elsewhere):
    assert elsewhere.look() == []
    elsewhere.write(state="left")
    assert len(elsewhere.look()) == 1


def test_drained_attempts_are_noted_and_may_be_any_number(site):
    site.submit("echo > started; sleep 1000")
    for attempt in range(1, 6):
        (site.directory / "started").unlink(missing_ok=True)
        worker = site.start()
        site.wait_for("started")
        worker.terminate()
        assert worker.wait() == 0
        ended = ended_attempt(site, 0, attempt)
        assert (ended["reason"], ended["worker"]) == ("drained", attempt - 1)
        assert ended["detail"] == "told by SIGTERM"
        assert ended["nonce"] == find_attempt(site.machine.job(0), attempt).nonce
    assert [view.attempt for view in Queue(site.machine, "q").waiting()] == [6]


def test_a_ticket_that_was_requeued_before_it_began_has_no_ended_attempt(site):
    site.submit("true")
    queue = Queue(site.machine, "q")
    (claim,) = queue.claim(0, lambda ticket: "take")
    queue.requeue(claim, "drained", "told to")
    assert [view.attempt for view in queue.waiting()] == [1]
    assert not site.machine.job(0).ended(1).exists()


def test_a_stopped_worker_of_this_node_is_left_to_its_supervisor(site):
    site.submit("echo > started; sleep 1000")
    worker = site.start(stay=True, heartbeat=HEARTBEAT)
    site.wait_for("started")
    stopped = [worker.pid, *descendants_of(worker.pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    observer = Observer()
    deadline = time.monotonic() + 30 * HEARTBEAT
    while time.monotonic() < deadline:
        assert recover(site.machine, "q", observer) == []
        time.sleep(0.05)
    assert not site.machine.worker(0).presumed_dead.exists()
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
