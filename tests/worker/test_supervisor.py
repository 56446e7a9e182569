"""The worker supervisor: no process of a job outlives the worker, and it forwards requests once."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from support import wait_until

from snakemake_kochi.queue import Queue, find_worker
from snakemake_kochi.queue.entries import queue_lock
from tests.worker.conftest import children_of, is_running

# A process whose session, environment and parent do not show its job, and that ignores signals.
HIDDEN = (
    'setsid env -i bash -c \'trap "" TERM HUP INT; echo $$ > hidden; '
    "(sleep 1001 & echo $! > below; wait) & while :; do sleep 0.1; done' & "
    "while [ ! -s hidden -o ! -s below ]; do sleep 0.1; done; "
)


def hidden_pids(site):
    return [site.wait_for(name).strip() for name in ("main", "hidden", "below")]


def test_a_process_hidden_from_its_job_ends_with_a_killed_worker(site):
    site.submit(HIDDEN + "echo $$ > main; exec sleep 1000")
    worker = site.start()
    pids = hidden_pids(site)
    assert all(map(is_running, pids))
    site.kill_worker(worker)
    # No process has recovered the ticket yet.
    assert not any(map(is_running, pids))
    assert [view.worker for view in Queue(site.machine, "q").running()] == [0]


def test_the_processes_of_a_killed_worker_end_although_no_program_can_be_loaded(site):
    # The worker may have been killed because the filesystem with the programs does not answer.
    change = f"""
        import errno, os, sys
        class Away:
            def find_spec(self, name, path=None, target=None):
                if os.path.exists({str(site.directory / "main")!r}):
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
        sys.meta_path.insert(0, Away())
    """
    site.submit(HIDDEN + "echo $$ > main; exec sleep 1000")
    supervisor = site.start_changed(change)
    pids = hidden_pids(site)
    site.kill_worker(supervisor)
    assert not any(map(is_running, pids))


def test_a_worker_and_its_jobs_die_with_the_supervisor(site):
    site.submit("[ -e main ] || { echo $$ > main; exec sleep 1000; }")
    supervisor = site.start(stay=True)
    pid = site.wait_for("main").strip()
    (worker,) = children_of(supervisor.pid)
    assert find_worker(site.machine, 0).process.pid == worker
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
    assert site.start().wait() == 0
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
    assert find_worker(site.machine, 0).reason == "told by SIGTERM"


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


def test_a_worker_for_which_there_is_no_process_says_how_to_see_the_limit(site):
    change = """
        import errno, os
        supervisor, fork, forks = os.getpid(), os.fork, []
        def fork_once():
            if os.getpid() == supervisor:
                forks.append(1)
                if len(forks) == 2:  # the first one tests the locks
                    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return fork()
        os.fork = fork_once
    """
    worker = site.start_changed(change, stderr=subprocess.PIPE)
    _, said = worker.communicate()
    assert worker.returncode != 0
    assert "worker 0 on machine local cannot be started: [Errno 11]" in said
    assert "type: ulimit -u" in said


def test_a_worker_that_gives_no_sign_of_life_is_ended_with_its_jobs(site):
    site.submit(HIDDEN + "[ -s main ] && exit 0; echo $$ > main; sleep 1000")
    supervisor = site.start(heartbeat=0.5, stderr=-3)
    pids = hidden_pids(site)
    os.kill(children_of(supervisor.pid)[0], signal.SIGSTOP)
    assert supervisor.wait() == -signal.SIGKILL
    assert not any(map(is_running, pids))
    assert "no sign of life for" in site.machine.worker(0).log.read_text()
    assert site.start().wait() == 0
    assert (site.job(0).result.ok, site.job(0).result.attempt) == (True, 2)


def test_a_worker_that_waits_for_a_lock_gives_signs_of_life(site):
    site.submit("while [ ! -e go ]; do sleep 0.1; done", "true")
    worker = site.start(cores=1, heartbeat=0.4)
    site.wait_until(lambda: site.job(0).started is not None)
    with queue_lock(site.machine, "q"):
        (site.directory / "go").touch()
        path = site.machine.worker(0).state
        beats: set[int] = set()
        # Its supervisor would end it after 6 heartbeats, others presume it dead after 12.
        wait_until(lambda: beats.add(path.stat().st_mtime_ns) or len(beats) >= 16)
        # An end needs no lock, and a claim does.
        assert site.job(1).state == "waiting", "it waits for the lock"
    assert worker.wait() == 0
    assert [site.job(n).result.attempt for n in (0, 1)] == [1, 1]


def test_a_worker_that_waits_for_a_lock_for_ever_is_ended_with_its_jobs(site):
    site.submit(
        "while [ ! -e go ]; do sleep 0.1; done", "[ -e main ] || { echo $$ > main; sleep 1000; }"
    )
    site.submit("true")
    worker = site.start(cores=2, heartbeat=0.15, stderr=-3)
    pid = site.wait_for("main").strip()
    with queue_lock(site.machine, "q"):
        (site.directory / "go").touch()
        assert worker.wait() == -signal.SIGKILL
        assert not is_running(pid)
    assert site.start().wait() == 0
    assert [site.job(n).result.attempt for n in (0, 1, 2)] == [1, 2, 1]


def test_a_request_between_the_registration_and_the_first_turn_is_obeyed(site):
    # When the worker reads its CPUs again, it is registered and does not handle signals yet.
    change = f"""
        import os, signal
        look = os.sched_getaffinity
        def look_late(pid):
            if os.path.exists({str(site.machine.worker(0).state)!r}):
                os.kill(os.getpid(), signal.SIGTERM)
                os.sched_getaffinity = look
            return look(pid)
        os.sched_getaffinity = look_late
    """
    site.submit("echo > started")
    supervisor = site.start_changed(change, stay=True)
    assert supervisor.wait() == 0
    assert find_worker(site.machine, 0).state == "left"
    assert len(Queue(site.machine, "q").waiting()) == 1


def test_no_signal_is_blocked_in_a_job(site):
    site.submit("grep SigBlk /proc/self/status")
    assert site.start().wait() == 0
    assert set(site.log(0).split()[1]) == {"0"}
