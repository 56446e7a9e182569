"""Snakemake jobs in copies of a process that has parsed their workflow."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem
from support import wait_until

from snakemake_kochi.queue import Queue, Resources, Ticket, cancel
from tests.worker.conftest import children_of, descendants_of, is_running

# The arguments with which the executor of Snakemake 9 submits a job.
COMMON = shlex.split(
    "--force --target-files-omit-workdir-adjustment --max-inventory-time 0 --retries 0 --nocolor "
    "--no-hooks --nolock --ignore-incomplete --latency-wait 1 --max-jobs-per-timespan 100000/0s "
    "--shared-fs-usage input-output persistence software-deployment software-deployment-cache "
    "source-cache sources storage-local-copies --quiet host progress rules reason --mode remote"
)


class Workflow:
    """A Snakefile, and tickets for its jobs."""

    def __init__(self, site, snakefile):
        self.site = site
        self.directory = site.directory / "workflow"
        self.directory.mkdir()
        self.write(snakefile)

    def write(self, snakefile):
        (self.directory / "Snakefile").write_text(textwrap.dedent(snakefile))

    def submit(self, rule, *values, environment=(), controller=None, **needs):
        """Submit a job of the rule for each value of its wildcard `i`."""
        tickets = []
        for value in values:
            own = ["--target-jobs", f"{rule}:i={value}", "--allowed-rules", rule]
            own += ["--cores", "all", "--attempt", "1", "--force-use-threads"]
            before = [sys.executable, "-m", "snakemake", "--snakefile", "Snakefile"]
            tickets.append(
                Ticket(
                    name=rule,
                    command=(*before, *own, *COMMON),
                    job_arguments=(len(before), len(before) + len(own)),
                    directory=str(self.directory),
                    environment=dict(environment),
                    resources=Resources(**needs),
                    controller=controller,
                )
            )
        return [ticket.job for ticket in Queue(self.site.machine, "q").submit(tickets)]

    def runners_of(self, *jobs):
        """The runners that executed these jobs, after their success."""
        results = [self.site.ended(job).result for job in jobs]
        assert [result.reason for result in results] == ["success"] * len(jobs), [
            self.site.log(job) for job in jobs
        ]
        return [result.runner for result in results]

    def read(self, name):
        return (self.directory / name).read_text()


@pytest.fixture
def workflow(site):
    return Workflow(site, SNAKEFILE)


SNAKEFILE = """
    rule shell:
        output: "shell/{i}.txt"
        shell: "echo {wildcards.i} >> {output}; echo $KOCHI_JOB_ID $KOCHI_RUNNER >> {output}"
    rule run:
        output: "run/{i}.txt"
        run:
            import os, random
            with open(output[0], "a") as stream:
                print(os.environ["KOCHI_JOB_ID"], random.random(), file=stream)
    rule slow:
        output: "slow/{i}.txt"
        shell: "echo $$ > pid{wildcards.i}; while [ ! -e go ]; do sleep 0.1; done; echo > {output}"
    rule fail:
        output: "fail/{i}.txt"
        run:
            raise ValueError("on purpose")
"""


def worker_log(site):
    path = site.machine.worker(0).log
    return path.read_text() if path.exists() else ""


def zygotes(process):
    """The zygotes of a worker, by its log: a copy looks like a zygote until it has a job."""
    found = []
    for worker in children_of(process.pid):
        for child in children_of(worker):
            with contextlib.suppress(OSError):
                log = Path(os.readlink(f"/proc/{child}/fd/1"))
                known = log.parent.name.isdecimal() and (log.parent / "log").read_text()
                if known and f"zygote {child} reads the workflow" in known:
                    found.append(child)
    return found


def the_zygote(process):
    wait_until(lambda: zygotes(process), "a zygote")
    (zygote,) = zygotes(process)
    return zygote


def worker_of(process):
    (worker,) = children_of(process.pid)
    return worker


def copies(worker, zygote):
    """The copies that wait for a job or for their release."""
    return [pid for pid in children_of(worker) if pid != zygote and os.getsid(pid) == zygote]


def told_of_a_job(copies):
    """The copies that have the log and the gate of a job, and not only their link."""
    return [pid for pid in copies if "pipe:" in descriptors_of(pid)]


def descriptors_of(pid):
    return " ".join(os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())


def test_one_process_reads_the_workflow_and_each_job_is_as_in_a_process_of_its_own(site, workflow):
    shells = workflow.submit("shell", 1, 2, 3)
    runs = workflow.submit("run", 1, 2)
    site.start(cores=2)
    assert workflow.runners_of(*shells, *runs) == ["zygote"] * 5
    assert worker_log(site).count("reads the workflow") == 1
    assert [workflow.read(f"shell/{i}.txt") for i in (1, 2, 3)] == [
        f"{i}\n{job} zygote\n" for i, job in zip((1, 2, 3), shells, strict=True)
    ]
    (job, first), (other_job, second) = (workflow.read(f"run/{i}.txt").split() for i in (1, 2))
    assert [int(job), int(other_job)] == runs
    assert first != second  # random numbers


def test_the_process_of_a_job_exists_before_the_job(site):
    workflow = Workflow(
        site,
        """
        rule pid:
            output: "{i}.txt"
            run:
                import os
                with open(output[0], "w") as stream:
                    print(os.getpid(), file=stream)
        """,
    )
    process = site.start(stay=True)
    for i in range(7):  # more than are made at a time
        wait_until(lambda i=i: i == 0 or copies(worker_of(process), the_zygote(process)))
        ready = copies(worker_of(process), the_zygote(process)) if i else []
        (job,) = workflow.submit("pid", i)
        assert workflow.runners_of(job) == ["zygote"]
        assert i == 0 or int(workflow.read(f"{i}.txt")) in ready
    process.terminate()
    process.wait()
    assert not any(is_running(pid) for pid in ready)


def test_a_job_that_fails_says_why_in_its_own_log(site, workflow):
    (job,) = workflow.submit("fail", 1)
    site.start()
    result = site.ended(job).result
    assert (result.reason, result.exit_status, result.runner) == ("failed", 1, "zygote")
    assert "ValueError" in site.log(job)
    assert "on purpose" in site.log(job)


def test_variables_and_seeds_of_the_workflow_hold_for_each_job(site):
    workflow = Workflow(
        site,
        """
        import os, random
        os.environ["SET"] = "by the workflow"
        os.environ["KOCHI_JOB_NAME"] = "renamed"
        del os.environ["TAKEN_AWAY"]
        random.seed(5)
        rule seen:
            output: "seen/{i}.txt"
            run:
                names = ("SET", "KOCHI_JOB_NAME", "TAKEN_AWAY", "GIVEN")
                with open(output[0], "w") as stream:
                    print([os.environ.get(name) for name in names], random.random(), file=stream)
        """,
    )
    jobs = workflow.submit("seen", 1, 2, environment={"TAKEN_AWAY": "x", "GIVEN": "y"})
    site.start()
    assert workflow.runners_of(*jobs) == ["zygote"] * 2
    number = random.Random(5).random()
    expected = f"['by the workflow', 'renamed', None, 'y'] {number}\n"
    assert [workflow.read(f"seen/{i}.txt") for i in (1, 2)] == [expected] * 2


def test_a_changed_workflow_is_read_again(site, workflow):
    first = workflow.submit("shell", 1, 2)
    site.start(stay=True)
    assert workflow.runners_of(*first) == ["zygote"] * 2
    workflow.write('rule shell:\n    output: "shell/{i}.txt"\n    shell: "echo new > {output}"\n')
    changed = workflow.submit("shell", 3)
    workflow.runners_of(*changed)  # by either, but not by what was read before
    assert workflow.read("shell/3.txt") == "new\n"
    assert workflow.runners_of(*workflow.submit("shell", 4)) == ["zygote"]
    assert workflow.read("shell/4.txt") == "new\n"
    assert worker_log(site).count("Snakefile has changed since it was read") >= 1


def test_an_unreadable_workflow_is_left_to_the_command_which_says_why(site, workflow):
    workflow.write("rule shell\n")
    jobs = workflow.submit("shell", 1, 2)
    site.start()
    for job in jobs:
        result = site.ended(job).result
        assert (result.reason, result.runner) == ("failed", "command")
        assert "Syntax" in site.log(job)
    assert worker_log(site).count("to the next runner: its parse failed") == 1


def test_files_that_jobs_write_where_the_workflow_looks_make_it_fall_back(site):
    workflow = Workflow(
        site,
        """
        import os
        os.makedirs("seen", exist_ok=True)
        there = sorted(os.listdir("seen"))
        rule seen:
            output: "seen/{i}.txt"
            run:
                with open(output[0], "w") as stream:
                    print(*there, file=stream)
        """,
    )
    site.start(stay=True)
    runners = []
    for i in range(7):
        (job,) = workflow.submit("seen", i)
        runners += workflow.runners_of(job)
        assert workflow.read(f"seen/{i}.txt").split() == [f"{n}.txt" for n in range(i)]
    assert runners[-1] == "command"
    assert worker_log(site).count("no zygote for the workflow") == 1


def test_a_workflow_that_starts_threads_is_left_to_the_command(site):
    workflow = Workflow(
        site,
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        rule made:
            output: "made/{i}.txt"
            shell: "echo > {output}"
        """,
    )
    jobs = workflow.submit("made", 1, 2)
    site.start()
    assert workflow.runners_of(*jobs) == ["command"] * 2
    assert worker_log(site).count("to the next runner: its parse starts threads") == 1


def test_a_workflow_that_reads_its_number_of_cores_gets_that_of_the_job(site):
    workflow = Workflow(
        site,
        """
        count = workflow.cores
        rule counted:
            output: "counted/{i}.txt"
            run:
                import os
                with open(output[0], "w") as stream:
                    print(count, len(os.sched_getaffinity(0)), file=stream)
        """,
    )
    cpus = len(os.sched_getaffinity(0))
    (one,) = workflow.submit("counted", 1, cores=1)
    (all_of_them,) = workflow.submit("counted", 2, cores=cpus)
    site.start(cores=cpus)
    assert workflow.runners_of(one, all_of_them) == ["zygote"] * 2
    assert workflow.read("counted/1.txt") == "1 1\n"
    assert workflow.read("counted/2.txt") == f"{cpus} {cpus}\n"


def test_a_cancelled_job_leaves_no_process_and_its_neighbours_alone(site, workflow):
    slow, other = workflow.submit("slow", 1, 2)
    site.start(cores=2, grace=0.5)
    wait_until(lambda: all((workflow.directory / f"pid{i}").exists() for i in (1, 2)))
    wait_until(lambda: workflow.read("pid1") and workflow.read("pid2"))
    shell = workflow.read("pid1").strip()
    assert is_running(shell)
    cancel(site.machine, slow)
    assert site.ended(slow).result.reason == "cancelled"
    assert not is_running(shell)
    (workflow.directory / "go").touch()
    assert workflow.runners_of(other) == ["zygote"]


def test_a_killed_zygote_takes_no_job_with_it_and_is_replaced(site, workflow):
    (job,) = workflow.submit("slow", 1)
    process = site.start(cores=2, stay=True)
    wait_until(lambda: (workflow.directory / "pid1").exists())
    zygote, worker = the_zygote(process), worker_of(process)
    os.kill(zygote, signal.SIGKILL)
    # A job that is sent to a dying zygote goes to the next runner.
    wait_until(lambda: not is_running(zygote), "the end of the zygote")
    wait_until(lambda: not copies(worker, zygote), "the end of the copies that had no job")
    assert workflow.runners_of(*workflow.submit("shell", 1)) == ["zygote"]
    assert site.job(job).state == "running"
    (workflow.directory / "go").touch()
    assert workflow.runners_of(job) == ["zygote"]


def test_a_zygote_killed_while_it_reads_the_workflow_is_replaced(site):
    workflow = Workflow(
        site,
        """
        import os, time
        if not os.path.exists("killed"):
            open("reading", "w").close()
            time.sleep(60)
        rule made:
            output: "made/{i}.txt"
            shell: "echo >> {output}"
        """,
    )
    (job,) = workflow.submit("made", 1)
    process = site.start()
    wait_until(lambda: (workflow.directory / "reading").exists())
    zygote = the_zygote(process)
    (workflow.directory / "killed").touch()
    os.kill(zygote, signal.SIGKILL)
    workflow.runners_of(job)
    assert workflow.read("made/1.txt") == "\n"


def test_a_zygote_that_does_not_answer_is_killed_and_its_job_executed_once(site, workflow):
    assert workflow.submit("shell", 1) == [0]
    process = site.start(stay=True)
    assert workflow.runners_of(0) == ["zygote"]
    zygote = the_zygote(process)
    os.kill(zygote, signal.SIGSTOP)
    (job,) = workflow.submit("shell", 2)
    assert workflow.runners_of(job) == ["command"]
    assert workflow.read("shell/2.txt") == f"2\n{job} command\n"
    wait_until(lambda: not is_running(zygote), "the end of the zygote")


def test_a_zygote_killed_between_the_copy_and_its_report_leaves_no_process_for_the_job(
    site, workflow
):
    process = site.start(stay=True)
    assert workflow.runners_of(*workflow.submit("shell", 1)) == ["zygote"]
    zygote = the_zygote(process)
    # The first message gives the copy its job, the second tells the worker about the copy.
    second = "inject=sendmsg:delay_enter=8000000:when=2"
    delay = ["strace", "-q", "-o", os.devnull, "-e", second]
    with subprocess.Popen([*delay, "-p", str(zygote)]) as strace:
        wait_until(lambda: "TracerPid:\t0" not in Path(f"/proc/{zygote}/status").read_text())
        (job,) = workflow.submit("shell", 2)
        worker = worker_of(process)
        wait_until(lambda: told_of_a_job(copies(worker, zygote)), "the copy that has the job")
        left = copies(worker, zygote)
        os.kill(zygote, signal.SIGKILL)
        strace.wait()
    assert workflow.runners_of(job) == ["command"]
    assert workflow.read("shell/2.txt") == f"2\n{job} command\n"
    wait_until(lambda: not any(is_running(copy) for copy in left), "the end of the copies")


def test_a_zygote_killed_at_any_moment_loses_no_job_and_doubles_none(site):
    # The job appends and is long enough to show a second execution.
    workflow = Workflow(
        site,
        """
        rule once:
            output: touch("done/{i}.txt")
            shell: "echo begin >> log{wildcards.i}; sleep 0.05; echo end >> log{wildcards.i}"
        """,
    )
    jobs = workflow.submit("once", *range(30))
    process = site.start(cores=2)
    chance = random.Random(11)
    ready = kills = 0

    def is_over():
        # After some zygotes of little use the worker starts no more.
        gave_up = "no zygote for the workflow" in worker_log(site)
        return gave_up or site.job(jobs[-1]).state == "ended"

    def is_over_or_ready(before):
        return is_over() or worker_log(site).count("is ready") > before

    while not is_over():
        wait_until(partial(is_over_or_ready, ready))
        ready = worker_log(site).count("is ready")
        time.sleep(chance.uniform(0.0, 0.6))
        for zygote in zygotes(process):
            os.kill(zygote, signal.SIGKILL)
            kills += 1
    runners = workflow.runners_of(*jobs)
    assert "zygote" in runners
    assert kills
    for i, job in enumerate(jobs):
        assert workflow.read(f"log{i}") == "begin\nend\n", (i, runners[i])
        assert site.job(job).result.attempt == 1


def test_nothing_of_a_zygote_outlives_its_worker(site, workflow):
    workflow.submit("slow", 1)
    process = site.start()
    wait_until(lambda: (workflow.directory / "pid1").exists())
    everything = descendants_of(process.pid)
    assert the_zygote(process) in everything
    site.kill_worker(process)
    wait_until(lambda: not any(map(is_running, everything)), "the end of all processes")


def test_a_worker_that_is_told_to_stop_requeues_its_jobs_and_leaves_no_zygote(site, workflow):
    (job,) = workflow.submit("slow", 1)
    process = site.start(grace=1)
    wait_until(lambda: (workflow.directory / "pid1").exists())
    everything = descendants_of(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not any(map(is_running, everything))
    assert site.job(job).state == "waiting"
    assert json.loads(site.machine.worker(0).state.read_text())["state"] == "left"


@pytest.mark.parametrize("moment", ["reading", "ready"])
def test_a_zygote_that_is_told_to_end_leaves_nothing_in_the_temporary_directory(
    site, tmp_path, monkeypatch, moment
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    read = "open('reading', 'w').close(); time.sleep(600)" if moment == "reading" else ""
    workflow = Workflow(
        site,
        f"""
        import time
        {read}
        rule made:
            output: "made/{{i}}.txt"
            run:
                open(output[0], "w").close()
        """,
    )
    (job,) = workflow.submit("made", 1)
    process = site.start(stay=True, grace=1)
    if moment == "reading":
        wait_until(lambda: (workflow.directory / "reading").exists())
        told = [process.pid]
    else:
        assert workflow.runners_of(job) == ["zygote"]
        # A scheduler signals all processes of an allocation.
        told = [*descendants_of(process.pid), process.pid]
    assert list(temporary.iterdir())
    for pid in told:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.kill(pid, signal.SIGTERM)
    process.wait(60)
    assert list(temporary.iterdir()) == []


def test_after_a_transient_error_the_next_jobs_get_a_zygote(site, workflow):
    with FaultyFilesystem(site.directory / "backing", site.root.directory) as filesystem:
        (first,) = workflow.submit("shell", 1)
        with filesystem.fault("create", errno.EIO, "*/workers/0/zygote-0.log", times=1):
            worker = site.start_with_runners(
                "Runners([zygotes := ZygoteRunner(machine.worker(state.worker), environment, 2, "
                "state.capacity.memory_mb, retry=0.1), CommandRunner()], [zygotes])",
                cores=1,
                stay=True,
                stderr=-3,
            )
            assert workflow.runners_of(first) == ["command"]
        assert workflow.runners_of(*workflow.submit("shell", 2)) == ["zygote"]
        assert worker_log(site).count("WARNING no zygote can be started now") == 1
        worker.terminate()
        assert worker.wait() == 0
