"""Cancel, drain, and the death of a worker or of its parent."""

from __future__ import annotations

import signal
import subprocess

from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.by_hand import cancel


def is_running(pid):
    process = ProcessIdentity.of(int(pid))
    return process is not None and process.is_alive()


def test_cancel_ends_grandchildren_and_nothing_else(site):
    script = "setsid bash -c 'env -i sleep 1001 & echo $! >> pids; sleep 1002' & "
    script += "bash -c 'trap \"\" TERM; sleep 1003 & echo $! >> pids; while :; do sleep 1; done' & "
    script += "echo $$ $! >> pids; while [ $(wc -l < pids) -lt 3 ]; do sleep 0.1; done; "
    script += "echo > ready; wait"
    site.submit("while [ ! -e go ]; do sleep 0.1; done; echo finished", script)
    site.start(cores=2, grace=0.5)
    site.wait_for("ready")
    pids = (site.directory / "pids").read_text().split()
    assert len(pids) == 4
    assert all(map(is_running, pids))
    assert cancel(site.machine, site.jobs[1]) == "cancelling"
    assert site.ended(1).result.reason == "cancelled"
    assert not any(map(is_running, pids))
    assert site.job(0).state == "running"
    (site.directory / "go").touch()
    assert site.ended(0).result.ok
    assert site.log(0) == "finished\n"


def test_a_job_that_ended_before_the_cancel_keeps_its_result(site):
    site.submit("exit 5")
    site.start()
    site.ended(0)
    assert cancel(site.machine, site.jobs[0]) == "ended"
    assert site.job(0).result.exit_status == 5


def test_a_job_that_was_requeued_is_run_again_with_its_log_kept(site):
    site.submit("echo run $(cat n 2>/dev/null); [ -e n ] || { echo 2 > n; sleep 1000; }")
    worker = site.start()
    site.wait_for("n")
    worker.terminate()
    assert worker.wait() == 0
    assert site.start().wait() == 0
    result = site.job(0).result
    assert (result.attempt, result.worker, result.ok) == (2, 2, True)
    assert site.log(0).splitlines() == ["run", "run 2"]


def test_an_idle_worker_recovers_the_tickets_of_a_dead_worker(site):
    site.submit("[ -e first ] || { echo > first; sleep 1000; }")
    worker = site.start(stay=True)
    site.wait_for("first")
    site.start(stay=True, idle_wait=0.2)
    worker.kill()
    # Do not reap it: a zombie also counts as dead.
    assert site.ended(0).result.worker == 2


def test_a_ticket_whose_workers_die_is_given_up_and_the_workers_are_named(site):
    site.submit("kill -KILL $PPID; sleep 1000")
    site.submit("true")
    while site.job(0).state != "ended":
        site.start(cores=1).wait()
    result = site.job(0).result
    assert (result.reason, result.attempt) == ("lost", 3)
    assert [each.worker for each in site.job(0).attempts] == [1, 2, 3]
    assert site.start().wait() == 0
    assert site.job(1).result.ok


def test_a_worker_whose_parent_is_gone_at_its_start_claims_nothing(site):
    site.submit("true")
    parent = subprocess.Popen(["true"])
    parent.wait()
    assert site.start(stay=True, parent=parent.pid).wait() == 0
    assert site.job(0).state == "waiting"


def test_a_stopped_worker_is_not_lost(site):
    site.submit("while [ ! -e go ]; do sleep 0.1; done", "true")
    worker = site.start(cores=1)
    site.wait_until(lambda: site.job(0).started is not None)
    worker.send_signal(signal.SIGSTOP)
    assert site.start().wait() == 0
    assert site.job(1).result.worker == 2
    assert site.job(0).state == "running"
    worker.send_signal(signal.SIGCONT)
    (site.directory / "go").touch()
    assert worker.wait() == 0
    assert site.job(0).result.attempt == 1
