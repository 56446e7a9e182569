"""Cancel, drain, and the death of a worker or of its parent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from support import write

from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue import Queue, cancel, find_worker, recover


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
    assert cancel(site.machine, 1) == "cancelling"
    assert site.ended(1).result.reason == "cancelled"
    assert not any(map(is_running, pids))
    assert site.job(0).state == "running"
    (site.directory / "go").touch()
    assert site.ended(0).result.ok
    assert site.log(0) == "finished\n"


def test_leftovers_end_before_the_result_even_if_the_job_ends_during_the_search(site):
    site.submit("sleep 1000 & echo $! > pid; while [ ! -e go ]; do sleep 0.1; done")
    go, pid = site.directory / "go", site.directory / "pid"
    # The job ends after the worker has listed its children, and before it acts on the list.
    change = f"""
        import os, time
        from pathlib import Path
        read_text = Path.read_text

        def list_then_end(self, *arguments, **options):
            found = read_text(self, *arguments, **options)
            has_begun = os.path.exists({str(pid)!r}) and not os.path.exists({str(go)!r})
            if self.name == "children" and has_begun:
                os.mknod({str(go)!r})
                time.sleep(0.5)
            return found

        Path.read_text = list_then_end
    """
    site.start_changed(change, stay=True, idle_wait=0.1)
    assert site.ended(0).result.ok
    assert not is_running(pid.read_text())


def test_a_job_that_ended_before_the_cancel_keeps_its_result(site):
    site.submit("exit 5")
    site.start()
    site.ended(0)
    assert cancel(site.machine, 0) == "ended"
    assert site.job(0).result.exit_status == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_worker_that_is_told_to_stop_requeues_its_jobs(site, number):
    script = "trap 'echo asked; exit 0' TERM; echo $$ > pid{0}; while :; do sleep 0.1; done"
    site.submit(script.format(0), script.format(1), "echo never here")
    worker = site.start(cores=2, grace=60)
    pids = [site.wait_for("pid0").strip(), site.wait_for("pid1").strip()]
    worker.send_signal(number)
    assert worker.wait() == 0
    assert not any(map(is_running, pids))
    assert "asked" in site.log(0), "it had the time to end in good order"
    waiting = Queue(site.machine, "q").waiting()
    assert [(view.job, view.attempt) for view in waiting] == [(0, 2), (1, 2), (2, 1)]
    assert find_worker(site.machine, 0).describe() == "left"
    assert find_worker(site.machine, 0).running == {}


@pytest.mark.parametrize("is_back", [True, False])
def test_a_ticket_is_not_requeued_while_a_process_of_it_lives_that_no_signal_ends(site, is_back):
    """As one whose system call waits for a file server that is gone, and is perhaps back soon."""
    loop = "until [ -e back ]; do sleep 0.1; done"
    site.submit(f"[ -e pid ] || {{ sh -c '{loop}' & echo $! > pid; wait; }}")
    worker = site.start_changed(
        f"""
        from pathlib import Path
        from snakemake_kochi.worker import slot
        send_signal, slot._LEFTOVER_PATIENCE = slot.send_signal, 0.2
        def send(processes, number):
            pid = int(Path({str(site.directory / "pid")!r}).read_text())
            send_signal([process for process in processes if process.pid != pid], number)
        slot.send_signal = send
        """,
        grace=0.1,
        leave_patience=60.0 if is_back else 5.0,
    )
    pid = site.wait_for("pid").strip()
    worker.terminate()
    waiting = site.machine.queue("q").waiting
    site.wait_until(lambda: "cannot be ended" in site.machine.worker(0).log.read_text())
    if is_back:
        assert list(waiting.rglob("*.json")) == []
        (site.directory / "back").touch()
    while worker.poll() is None:
        requeued = list(waiting.rglob("*.json"))
        assert not (requeued and is_running(pid))
        time.sleep(0.005)
    if is_back:
        assert find_worker(site.machine, 0).describe() == "left"
        assert [path.name for path in waiting.rglob("*.json")] == ["0000000000-2.json"]
    else:
        assert find_worker(site.machine, 0).state == "draining"
        assert list(waiting.rglob("*.json")) == []
    assert site.start().wait() == 0
    assert site.job(0).result.attempt == 2


def test_a_success_whose_process_no_signal_ends_costs_a_few_turns_of_the_loop(site):
    site.submit("sleep 1000 & echo $! > pid; exit 0")
    worker = site.start_changed(
        f"""
        from pathlib import Path
        from snakemake_kochi.worker import slot
        slot.send_signal, slot._LEFTOVER_PATIENCE = lambda *_: None, 3.0
        advance = slot.Slot.advance
        def advance_and_count(*arguments):
            with open({str(site.directory / "turns")!r}, "a") as stream:
                stream.write(".")
            return advance(*arguments)
        slot.Slot.advance = advance_and_count
        """
    )
    assert worker.wait() == 0
    assert site.job(0).result.ok
    assert (site.directory / "turns").stat().st_size < 200
    assert not is_running(site.wait_for("pid").strip())


def test_a_second_signal_does_not_wait_for_the_grace(site):
    site.submit("trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done")
    worker = site.start(grace=10_000)
    site.wait_for("pid")
    worker.send_signal(signal.SIGTERM)
    log = site.machine.worker(0).log
    site.wait_until(lambda: "stopping" in log.read_text())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert not is_running(site.wait_for("pid").strip())


def test_a_job_that_was_requeued_is_run_again_with_its_log_kept(site):
    site.submit("echo run $(cat n 2>/dev/null); [ -e n ] || { echo 2 > n; sleep 1000; }")
    worker = site.start()
    site.wait_for("n")
    worker.terminate()
    assert worker.wait() == 0
    assert site.start().wait() == 0
    result = site.job(0).result
    assert (result.attempt, result.worker, result.ok) == (2, 1, True)
    first, header, second = site.log(0).splitlines()
    assert (first, second) == ("run", "run 2")
    assert header.startswith("-- attempt 2: worker 1 on ")


def test_the_job_of_a_killed_worker_is_finished_by_another_and_has_no_second_writer(site):
    # The job keeps writing from a grandchild that survives the death of its worker by itself.
    script = (
        "me=$KOCHI_ATTEMPT_NONCE; if [ -e first ]; then echo $(cat beat) > seen; sleep 0.5; "
        "echo $(cat beat) >> seen; exit 0; fi; "
        "setsid bash -c 'trap \"\" TERM HUP; while :; do date +%N > beat; sleep 0.02; done' & "
        "while [ ! -s beat ]; do sleep 0.1; done; echo $$ > first; wait"
    )
    site.submit(script)
    worker = site.start(stay=True)
    old = site.wait_for("first").strip()
    worker.kill()
    worker.wait()
    assert site.start().wait() == 0
    result = site.job(0).result
    assert (result.attempt, result.worker, result.ok) == (2, 1, True)
    assert not is_running(old)
    before, after = (site.directory / "seen").read_text().splitlines()
    assert before == after, "an old process still wrote while the new attempt ran"
    assert find_worker(site.machine, 0).describe() == "lost"
    lost = json.loads(site.machine.job(0).ended(1).read_text())
    assert lost["worker"] == 0


def test_an_idle_worker_recovers_the_tickets_of_a_dead_worker(site):
    site.submit("[ -e first ] || { echo > first; sleep 1000; }")
    worker = site.start(stay=True)
    site.wait_for("first")
    site.start(stay=True, idle_wait=0.2)
    worker.kill()
    # Do not reap it: a zombie also counts as dead.
    assert site.ended(0).result.worker == 1


def test_a_ticket_whose_workers_die_is_given_up_and_the_workers_are_named(site):
    site.submit("kill -KILL $PPID; sleep 1000")
    site.submit("true")
    while site.job(0).state != "ended":
        site.start(cores=1).wait()
    result = site.job(0).result
    assert (result.reason, result.attempt) == ("lost", 3)
    for worker in range(3):
        assert f"worker {worker} on " in result.describe()
    assert site.start().wait() == 0
    assert site.job(1).result.ok


@pytest.mark.parametrize(
    "said",
    [
        "slurmstepd: error: StepId=7.batch exceeded memory limit (9 > 8), being killed",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.",
        "=>> PBS: job killed: mem 9kb exceeded limit 8kb",
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
        "all is well",
        "CUDA out of memory. Tried to allocate 2.00 GiB",  # a job, which prints there, too
    ],
)
def test_a_job_whose_allocation_the_scheduler_killed_for_its_memory_says_so(site, said):
    log = site.machine.allocation_log(None, "7")
    log.parent.mkdir(parents=True)
    site.submit(f"echo '{said}' > {log}; kill -KILL $PPID; sleep 1000")
    for _ in range(3):
        site.start(allocation="7").wait()
    seen = recover(site.machine, "q") or [site.job(0).result.describe()]
    text = "\n".join([*seen, site.job(0).result.describe()])
    assert "see: kochi show log worker 2" in text
    memory = f'its allocation ran out of memory: "{said}"; request more with the resource mem_mb'
    assert (memory in text) is said.startswith(("slurmstepd", "=>>", "TERM"))


def test_a_controller_can_recover_without_any_worker(site):
    site.submit("echo > started; sleep 1000")
    worker = site.start()
    site.wait_for("started")
    assert recover(site.machine, "q") == [], "its worker lives"
    site.kill_worker(worker)
    (message,) = recover(site.machine, "q")
    assert "worker 0" in message and "job 0" in message
    assert [view.attempt for view in Queue(site.machine, "q").waiting()] == [2]
    assert recover(site.machine, "q") == []
    assert recover(site.machine, "never-used") == []


def test_cancel_of_a_job_whose_worker_was_killed_ends_it(site):
    site.submit("echo $$ > pid; sleep 1000")
    worker = site.start()
    pid = site.wait_for("pid").strip()
    site.kill_worker(worker)
    assert cancel(site.machine, 0) == "cancelled"
    assert site.job(0).result.reason == "cancelled"
    assert not is_running(pid)


def test_a_worker_killed_before_its_job_began_leaves_nothing_to_kill(site):
    queue = Queue(site.machine, "q")
    site.submit("echo ran >> ran")
    change = """
        import os
        open_file = os.open
        def die_first(path, *arguments, **options):
            if "attempt-" in str(path):
                os.kill(os.getpid(), 9)
            return open_file(path, *arguments, **options)
        os.open = die_first
    """
    assert site.start_changed(change).wait() == -signal.SIGKILL
    assert [view.worker for view in queue.running()] == [0]
    assert not site.machine.job(0).attempt(1).exists()
    assert site.start().wait() == 0
    assert (site.directory / "ran").read_text() == "ran\n"
    assert site.job(0).result.attempt == 2


def test_two_workers_that_hold_one_attempt_do_not_both_run_it(site):
    site.submit("echo ran >> ran")
    directory = site.machine.job(0).directory
    directory.mkdir(parents=True, mode=0o700)
    site.machine.job(0).attempt(1).write_text("{}")
    worker = site.start(stay=True, stderr=-3)
    log = site.machine.worker(0).log
    message = "was begun by another worker"
    site.wait_until(lambda: log.exists() and message in log.read_text())
    worker.terminate()
    assert worker.wait() == 0
    assert not (site.directory / "ran").exists()


def test_a_worker_leaves_when_its_parent_is_gone(site):
    site.submit("echo $$ > pid; sleep 1000")
    parent = subprocess.Popen(["sleep", "1000"])
    worker = site.start(stay=True, parent=parent.pid, idle_wait=7200)
    pid = site.wait_for("pid").strip()
    parent.kill()  # and not waited for: it stays a zombie
    assert worker.wait() == 0
    assert not is_running(pid)
    assert [view.attempt for view in Queue(site.machine, "q").waiting()] == [2]
    parent.wait()


def test_a_worker_whose_parent_is_gone_at_its_start_claims_nothing(site):
    site.submit("true")
    parent = subprocess.Popen(["true"])
    parent.wait()
    assert site.start(stay=True, parent=parent.pid).wait() == 0
    assert site.job(0).state == "waiting"


def test_nothing_of_a_killed_workers_job_runs_on_by_itself(site):
    site.submit("echo $$ > pid; exec sleep 1000")
    worker = site.start()
    pid = site.wait_for("pid").strip()
    site.kill_worker(worker)
    process = ProcessIdentity.of(int(pid))
    site.wait_until(lambda: process is None or not process.is_alive())


def test_a_stopped_worker_is_not_lost(site):
    site.submit("while [ ! -e go ]; do sleep 0.1; done", "true")
    worker = site.start(cores=1)
    site.wait_until(lambda: site.job(0).started is not None)
    worker.send_signal(signal.SIGSTOP)
    assert site.start().wait() == 0
    assert site.job(1).result.worker == 1
    assert site.job(0).state == "running"
    worker.send_signal(signal.SIGCONT)
    (site.directory / "go").touch()
    assert worker.wait() == 0
    assert site.job(0).result.attempt == 1


@pytest.mark.parametrize(
    ("identity", "change", "is_lost"),
    [
        ("some-id", {"host": "elsewhere", "boot": "x"}, False),
        ("some-id", {"namespace": "pid:[1]"}, False),
        ("some-id", {"boot": "before"}, True),
        # Containers often have no machine-id. Then two of one name cannot be distinguished.
        ("", {"boot": "before"}, False),
    ],
)
def test_a_worker_on_another_node_is_not_declared_lost(site, identity, change, is_lost):
    site.submit("echo > started; sleep 1000")
    worker = site.start()
    site.wait_for("started")
    site.kill_worker(worker)
    path = site.machine.worker(0).state
    state = json.loads(path.read_text())
    node = {**state["node"], "machine": identity}
    path.write_text(json.dumps({**state, "node": {**node, **change}}))
    own_id = write(site.directory / "machine-id", identity)
    code = f"""
        from pathlib import Path
        from snakemake_kochi.paths import Root
        from snakemake_kochi.queue import list_workers
        print(list_workers(Root(Path({str(site.root.directory)!r})).machine("local"))[0].is_lost)
    """
    mount = f'mount --bind {own_id} /etc/machine-id && exec "$@"'
    unshare = ["unshare", "--mount", "bash", "-c", mount, "-"]
    program = [sys.executable, "-c", textwrap.dedent(code)]
    found = subprocess.run([*unshare, *program], capture_output=True, text=True, check=True)
    assert found.stdout == f"{is_lost}\n"
    path.write_text(json.dumps(state))
    assert recover(site.machine, "q")
