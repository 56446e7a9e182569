"""A filesystem that returns errors for a while ends no worker and no job of it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import subprocess
from pathlib import Path

import pytest
from faulty_filesystem import Fault, FaultyFilesystem

from snakemake_kochi.errors import WorkerError
from snakemake_kochi.paths import Root
from snakemake_kochi.queue import Inbox, Queue, ShellJob, Ticket
from snakemake_kochi.queue.result import Result
from snakemake_kochi.queue.wakeup import notify
from snakemake_kochi.worker.node.health import MOST_FAILURES, Health
from snakemake_kochi.worker.output import Echo
from snakemake_kochi.worker.settings import WorkerSettings
from snakemake_kochi.worker.start import run_worker
from tests.worker.conftest import COUNT_WAKE_UPS, Site

SOON = {"idle_wait": 0.1}
UNTIL_GO = "until [ -e go ]; do sleep 0.1; done"
FAULTS = [errno.EIO, errno.ESTALE]


def log_of(site: Site) -> str:
    # Read the file without the filesystem that has the faults.
    backing = Root(site.directory / "backing").machine("local")
    return backing.worker(0).log.read_text()


def meet(site: Site, faulty: FaultyFilesystem, fault: Fault, times: int) -> None:
    """Have the worker look for orders until it has met a fault so often.

    Without notifications it looks less often on a busy machine.
    """

    def has_met() -> bool:
        notify(site.machine.worker(0).wakeup)
        return faulty.count(fault) >= times

    site.wait_until(has_met)


def ends_well(site: Site, job: int) -> bool:
    result = site.ended(job).result
    return result is not None and result.ok and result.attempt == 1 and result.worker == 0


@pytest.mark.parametrize("error", [*FAULTS, errno.ENOENT])
def test_a_run_does_not_count_as_over_while_its_state_is_unknown(
    site: Site, faulty: FaultyFilesystem, error: int
) -> None:
    said = "the state of the run that started this worker cannot be read now: "
    inbox = Inbox.create(site.machine, str(site.directory))
    site.submit(UNTIL_GO, controller=inbox.identity)
    worker = site.start(controller=inbox.identity, cores=1, **SOON)
    site.wait_until(site.machine.job(0).attempt(1).exists)
    with faulty.fault("getattr", error, f"*/controllers/{inbox.identity}") as fault:
        meet(site, faulty, fault, 4)
        if error != errno.ENOENT:
            # One look repeats a call for two seconds after ESTALE.
            site.wait_until(lambda: said in log_of(site))
        assert worker.poll() is None
    (site.directory / "go").touch()
    assert ends_well(site, 0)
    inbox.close()
    assert worker.wait() == 0
    assert log_of(site).count(f"WARNING {said}") == (error != errno.ENOENT)


def test_a_worker_does_not_cancel_a_job_while_it_cannot_see_whether_to(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit(UNTIL_GO)
    worker = site.start(cores=1, **SOON)
    site.wait_until(site.machine.job(0).attempt(1).exists)
    with faulty.fault("readdir", errno.EIO, "*/jobs/*/0") as fault:
        meet(site, faulty, fault, 4)
    (site.directory / "go").touch()
    assert ends_well(site, 0)
    assert worker.wait() == 0
    assert log_of(site).count("WARNING orders to cancel jobs cannot be read now") == 1


@pytest.mark.parametrize("error", FAULTS)
def test_a_log_that_cannot_be_read_for_a_while_is_shown_completely(
    site: Site, faulty: FaultyFilesystem, error: int
) -> None:
    site.submit(f"echo first; {UNTIL_GO}; echo last", "echo other")
    with open(site.directory / "shown", "wb") as shown:
        worker = site.start(cores=2, echo=True, stdout_to=shown, **SOON)
    site.wait_until(lambda: "first" in (site.directory / "shown").read_text())
    assert site.ended(1).result.ok  # type: ignore[union-attr]
    with faulty.fault("open", error, "*/jobs/*/log") as fault:
        site.wait_until(lambda: faulty.count(fault) >= 3)
        assert worker.poll() is None
    (site.directory / "go").touch()
    assert ends_well(site, 0)
    assert worker.wait() == 0
    lines = (site.directory / "shown").read_text().splitlines()
    assert lines[4:7] == ["first", "last", "-" * 80]
    assert lines[8:10] == ["-" * 80, "other"]
    said = log_of(site).count("WARNING the log of job 0 cannot be shown now")
    assert said == (error == errno.EIO), "ESTALE is asked again"


def test_a_log_that_stays_unreadable_does_not_keep_others_from_being_shown(
    tmp_path: Path,
) -> None:
    shown = io.BytesIO()
    now = 1000.0
    follower = Echo(jobs=True, stream=shown, clock=lambda: now)
    unreadable = tmp_path / "log"
    unreadable.mkdir()
    (tmp_path / "other").write_text("other\n")
    follower.job_started(0, "first", unreadable, 0)
    follower.job_started(1, "second", tmp_path / "other", 0)
    follower.job_ended(0, "")
    follower.job_ended(1, "")
    follower.pump()
    assert b"other" not in shown.getvalue()
    now += 60
    follower.pump()
    assert f"(the rest of {unreadable} cannot be read: Is a directory)" in shown.getvalue().decode()
    assert b"other\n" in shown.getvalue()


def test_an_attempt_begins_though_its_directory_is_stale_for_a_moment(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit("echo ran >> ran")
    with faulty.fault("getattr", errno.ESTALE, "*/ended-1.json", times=9) as fault:
        assert site.start(cores=1).wait() == 0
        assert faulty.count(fault) == 9
    assert ends_well(site, 0)


COPY = ShellJob(script="cp in out", executable="/bin/bash")


@pytest.mark.parametrize(
    ("call", "path", "shell"),
    [("getattr", "/jobs", None), ("getattr", "/jobs", COPY), ("unlink", "/jobs/out", COPY)],
)
def test_a_job_begins_though_its_files_are_stale_for_a_moment(
    site: Site, call: str, path: str, shell: ShellJob | None
) -> None:
    with FaultyFilesystem(site.directory / "there", site.directory / "files") as files:
        work = files.path / "jobs"
        work.mkdir()
        (work / "in").write_text("content")
        (work / "out").write_text("old")
        command = ("/bin/bash", "-c", "cp in out")
        ticket = Ticket("one", command, str(work), outputs=("out",), shell=shell)
        Queue(site.machine, "q").submit([ticket])
        # The kernel asks for each file twice.
        with files.fault(call, errno.ESTALE, path, times=5) as fault:
            assert site.start(cores=1).wait() == 0
            assert files.count(fault) == 5
        assert (work / "out").read_text() == "content"
    assert ends_well(site, 0)


def test_starts_that_fail_for_a_moment_set_no_worker_aside(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit(UNTIL_GO)
    worker = site.start(cores=2, **SOON)
    site.wait_until(site.machine.job(0).attempt(1).exists)
    # With a lasting fault a worker leaves the node after three failed starts.
    with faulty.fault("create", errno.EIO, "*/jobs/*/log", times=4) as fault:
        site.submit("true")
        assert ends_well(site, 1)
        assert faulty.count(fault) == 4
    (site.directory / "go").touch()
    assert ends_well(site, 0)
    assert worker.wait() == 0


def test_a_job_that_fails_while_its_node_cannot_write_is_judged_when_it_can(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit(UNTIL_GO, "echo ran >> ran; exit 3")
    with faulty.fault("create", errno.EIO, "*/workers/0/.probe*", times=3) as fault:
        worker = site.start(cores=2, **SOON)
        assert site.ended(1).result.exit_status == 3  # type: ignore[union-attr]
        assert faulty.count(fault) == 3
    assert (site.directory / "ran").read_text() == "ran\n" * 2, "once, and once when it could"
    (site.directory / "go").touch()
    assert ends_well(site, 0)
    assert worker.wait() == 0
    said = f"this node cannot write {site.machine.worker(0).probe}: Input/output error"
    assert log_of(site).count(f"WARNING {said}") == 1


def test_a_node_on_which_an_error_does_not_pass_is_set_aside(
    site: Site, faulty: FaultyFilesystem
) -> None:
    now = 1000.0
    site.machine.worker(0).directory.mkdir(parents=True)
    judge = Health(site.machine, 0, os.environ, clock=lambda: now)
    failed = Result(0, 1, "nonce", 0, "node", "failed", 1, None, None, "", "")
    with faulty.fault("create", errno.EIO, "*/workers/0/.probe*"):
        assert judge.fault_behind(failed, str(site.directory)) is not None
        assert (judge.cause, judge.reason, judge.is_in_doubt()) == (None, "drained", True)
        now += 60
        assert judge.is_in_doubt()
    assert (judge.reason, judge.is_in_doubt()) == ("node failed", True)
    assert judge.cause is not None and judge.cause.startswith("this node cannot write")


def test_other_workers_are_not_judged_by_unreadable_states(
    site: Site, faulty: FaultyFilesystem
) -> None:
    """An omitted worker would count as new, with all its successes since it started."""
    site.submit(*["true"] * 12)
    good = site.start(cores=1, stay=True)
    site.wait_until(lambda: site.job(11).state == "ended")
    site.wait_until(lambda: '"succeeded": 12' in site.machine.worker(0).state.read_text())
    site.machine.worker(1).directory.mkdir(parents=True)
    judge = Health(site.machine, 1, os.environ)
    failed = Result(20, 1, "nonce", 1, "node", "failed", 1, None, None, "", "")
    with faulty.fault("open", errno.EIO, "*/workers/0/worker.json", times=1) as fault:
        for _ in range(MOST_FAILURES + 2):
            judge.note(failed, "q")
        assert faulty.count(fault) == 1
    assert judge.cause is None
    good.terminate()
    assert good.wait() == 0


def test_a_worker_does_not_leave_while_it_cannot_say_so(
    site: Site, faulty: FaultyFilesystem
) -> None:
    """A process that finds the worker running relies on its last look into the queue."""
    site.submit(UNTIL_GO)
    worker = site.start(cores=1, **SOON)
    site.wait_until(site.machine.job(0).attempt(1).exists)
    with faulty.fault("rename", errno.EIO, "*/worker.json") as fault:
        (site.directory / "go").touch()
        assert ends_well(site, 0)
        met = faulty.count(fault)
        site.wait_until(lambda: faulty.count(fault) >= met + 5)
        assert worker.poll() is None
        site.submit("true")
        assert ends_well(site, 1)
    assert worker.wait() == 0
    assert log_of(site).count("WARNING the worker's state cannot be written now") == 1


def test_the_end_of_a_job_is_kept_while_it_is_unknown_whether_the_queues_exist(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit(UNTIL_GO)
    worker = site.start_changed(
        """
        from pathlib import Path
        from snakemake_kochi.queue.entries import QueueRemovedError
        from snakemake_kochi.queue.queue import Queue
        finish = Queue.finish
        def fail(self, claim, result, file):
            if not Path("well").exists():
                Path("go").rename("gone")
                while not Path("faulty").exists():
                    pass
                Path("well").touch()
                raise QueueRemovedError("the queue is gone")
            return finish(self, claim, result, file)
        Queue.finish = fail
        """,
        cores=1,
        cwd=site.directory,
        stderr=-3,
        **SOON,
    )
    site.wait_until(site.machine.job(0).attempt(1).exists)
    (site.directory / "go").touch()
    site.wait_until((site.directory / "gone").exists)
    with faulty.fault("getattr", errno.EIO, "*/queues"):
        (site.directory / "faulty").touch()
        # Not the first fault: others than the worker's question may be on the way there, too.
        site.wait_until(lambda: "the end of job 0 cannot be written yet" in log_of(site))
    assert ends_well(site, 0)
    assert worker.wait() == 0


def test_a_worker_sleeps_while_it_cannot_write_the_end_of_a_job_though_its_parent_is_gone(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit(UNTIL_GO)
    parent = subprocess.Popen(["sleep", "1000"])
    worker = site.start_changed(
        COUNT_WAKE_UPS,
        cores=1,
        parent=parent.pid,
        cwd=site.directory,
        stderr=-3,
    )
    site.wait_until(site.machine.job(0).attempt(1).exists)
    with faulty.fault("rename", errno.EIO, "*/running/*") as fault:
        parent.kill()
        parent.wait()
        site.wait_until(lambda: faulty.count(fault) >= 2)
        before = site.wake_ups()
        site.wait_until(lambda: faulty.count(fault) >= 5)
        wake_ups = site.wake_ups() - before
    assert wake_ups < 60, "some for each of the tries"
    assert worker.wait() == 0
    assert [view.attempt for view in Queue(site.machine, "q").waiting()] == [2]


def test_cpus_that_cannot_be_released_for_a_while_end_no_job(site: Site) -> None:
    site.submit("true", UNTIL_GO, cores=1)
    worker = site.start_changed(
        """
        import errno, fcntl
        from pathlib import Path
        lockf = fcntl.lockf
        def fail(file, operation, *place):
            if operation == fcntl.LOCK_UN and not Path("well").exists():
                Path("tried").touch()
                raise OSError(errno.EIO, "Input/output error")
            return lockf(file, operation, *place)
        fcntl.lockf = fail
        """,
        cores=len(os.sched_getaffinity(0)),
        cwd=site.directory,
        stderr=-3,
        **SOON,
    )
    assert ends_well(site, 0)
    site.wait_until((site.directory / "tried").exists)
    site.submit("true", cores=1)
    assert ends_well(site, 2)
    (site.directory / "well").touch()
    log = site.machine.worker(0).log
    # The worker tries again by itself, not only at the end of the next job.
    site.wait_until(lambda: "no longer: CPUs cannot be released" in log.read_text())
    (site.directory / "go").touch()
    assert ends_well(site, 1)
    assert worker.wait() == 0
    said = log.read_text()
    assert said.count("WARNING CPUs cannot be released for other workers of this node now") == 1


def test_a_worker_whose_log_cannot_be_written_goes_on_and_says_so_once(
    site: Site, faulty: FaultyFilesystem
) -> None:
    with faulty.fault("write", errno.ENOSPC, "*/workers/0/log"):
        site.submit("true", "true", "echo here")
        worker = site.start(cores=1, stderr=subprocess.PIPE)
        _, said = worker.communicate(timeout=60)
        assert worker.returncode == 0
    assert said.count("its log cannot be written now") == 1
    assert "Traceback" not in said
    assert site.log(2) == "here\n"


@pytest.mark.parametrize(
    ("call", "path"), [("create", "*/workers/0/.worker.json*"), ("create", "*/workers/0/log")]
)
def test_a_worker_that_cannot_begin_says_why(
    site: Site, faulty: FaultyFilesystem, call: str, path: str
) -> None:
    with faulty.fault(call, errno.EIO, path):
        worker = site.start(cores=1, stderr=subprocess.PIPE)
        _, said = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "worker 0 on machine local cannot be started: [Errno 5]" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("is_in_allocation", [False, True])
def test_a_worker_number_that_may_have_been_used_is_not_used(
    site: Site, faulty: FaultyFilesystem, is_in_allocation: bool
) -> None:
    site.machine.worker(3).directory.mkdir(parents=True)
    allocation = "7" if is_in_allocation else None
    root = str(site.root.directory)
    settings = WorkerSettings(root, "local", queues=("q",), worker=3, allocation=allocation)
    with (
        faulty.fault("getattr", errno.EIO, "*/workers/3/worker.json"),
        pytest.raises(WorkerError, match="worker 3 on machine local cannot be started"),
    ):
        run_worker(settings)


def test_an_output_on_a_full_disk_waits_and_is_complete(site: Site) -> None:
    disk = site.directory / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "kochi-test", disk], check=True)
    try:
        filling = disk / "filling"
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 4096)
        site.submit("seq 100; until [ -e go ]; do sleep 0.1; done; seq 2000")
        with open(disk / "shown", "wb") as shown:
            worker = site.start(cores=1, echo=True, stay=True, stdout_to=shown, stderr=-3, **SOON)
        log = site.machine.worker(0).log
        said = "the jobs' output cannot be shown now: [Errno 28] No space left on device"
        site.wait_until(lambda: log.exists() and said in log.read_text())
        # Some free space, but less than the output needs.
        os.truncate(filling, filling.stat().st_size - 4096)
        (site.directory / "go").touch()
        site.wait_until(lambda: (disk / "shown").stat().st_size == 4096)
        site.submit("true")
        assert ends_well(site, 0)
        assert ends_well(site, 1)
        filling.unlink()
        site.wait_until(lambda: "(ID=1) started" in (disk / "shown").read_text())
        worker.terminate()
        assert worker.wait() == 0
        content = (disk / "shown").read_text()
        assert log.read_text().count(f"WARNING {said}") == 2, "the disk had free space in between"
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    lines = [str(n) for n in (*range(1, 101), *range(1, 2001))]
    assert content.splitlines()[4 : 4 + len(lines)] == lines


def test_an_output_that_can_never_be_written_ends_no_job(site: Site) -> None:
    site.submit("echo first", "echo second")
    with open("/dev/full", "wb") as full:
        worker = site.start(cores=1, echo=True, stdout_to=full, stderr=subprocess.PIPE)
    _, said = worker.communicate(timeout=60)
    assert (worker.returncode, said.count("No space left on device")) == (0, 1)
    assert ends_well(site, 0)
    assert ends_well(site, 1)
