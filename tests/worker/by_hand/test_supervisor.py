"""The worker supervisor: no process of a job outlives the worker, and it forwards requests once."""

from __future__ import annotations

import os
import signal

import pytest

from snakemake_kochi.queue.views import find_worker
from tests.worker.by_hand.conftest import children_of, is_running


def test_a_worker_and_its_jobs_die_with_the_supervisor(site):
    site.submit("[ -e main ] || { echo $$ > main; exec sleep 1000; }")
    supervisor = site.start(stay=True)
    pid = site.wait_for("main").strip()
    assert find_worker(site.machine, 1).process.pid == supervisor.pid
    worker, *_ = children_of(supervisor.pid)
    supervisor.kill()
    supervisor.wait()
    site.wait_until(lambda: not is_running(worker) and not is_running(pid))
    assert site.start().wait() == 0
    assert site.job(0).result.attempt == 2


def test_processes_that_a_killed_supervisor_could_not_end_are_ended_before_the_next_attempt(site):
    script = "setsid bash -c 'echo $$ > hidden; while :; do echo >> beat; sleep 0.01; done' & "
    script += "while [ ! -s beat ]; do sleep 0.1; done; echo > main; wait"
    site.submit(f"[ ! -e main ] || {{ wc -l < beat; sleep 0.3; wc -l < beat; exit 0; }}; {script}")
    supervisor = site.start(stay=True)
    site.wait_for("main")
    supervisor.kill()
    supervisor.wait()
    site.start(stay=True)
    assert site.ended(0).result.attempt == 2
    before, after = site.log(0).splitlines()[-2:]
    assert before == after
    assert not is_running(site.wait_for("hidden").strip())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_supervisor_ends_as_its_worker_did(site, number):
    site.submit("echo > started; sleep 1000")
    supervisor = site.start()
    site.wait_for("started")
    os.kill(children_of(supervisor.pid)[0], number)
    assert supervisor.wait() == -number


def test_one_request_to_the_whole_process_group_counts_once(site):
    script = "trap 'sleep 0.5; echo ended in order; exit 0' TERM; echo > started; "
    site.submit(script + "while :; do sleep 0.1; done")
    supervisor = site.start(grace=10_000, start_new_session=True)
    site.wait_for("started")
    os.killpg(supervisor.pid, signal.SIGTERM)
    assert supervisor.wait() == 0
    assert "ended in order" in site.log(0)
    assert find_worker(site.machine, 1).reason == "told by SIGTERM"


def test_a_closed_terminal_changes_nothing_under_nohup(site):
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    site.submit("echo > started; while [ ! -e go ]; do sleep 0.1; done")
    supervisor = site.start(start_new_session=True, preexec_fn=ignore)
    site.wait_for("started")
    os.killpg(supervisor.pid, signal.SIGHUP)
    os.kill(supervisor.pid, signal.SIGHUP)
    (site.directory / "go").touch()
    assert supervisor.wait() == 0
    assert (site.job(0).result.ok, site.job(0).result.attempt) == (True, 1)


def test_a_worker_starts_although_its_parent_ignored_the_ends_of_children(site):
    site.submit("echo done")
    assert site.start(prefix=("env", "--ignore-signal=CHLD")).wait() == 0
    assert site.ended(0).result.ok


def test_no_signal_is_blocked_in_a_job(site):
    site.submit("grep SigBlk /proc/self/status")
    assert site.start().wait() == 0
    assert set(site.log(0).split()[1]) == {"0"}
