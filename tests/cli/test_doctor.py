"""`kochi doctor` finds faults, does not hang, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import git, open_runs, wait_until, write

from snakemake_kochi.doctor import filesystem, node, peer
from snakemake_kochi.doctor.filesystem import (
    CALLS_PER_TICKET,
    judge_speed,
)
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.locks import settle_locks
from snakemake_kochi.paths import MachinePaths, Root, TrialPaths
from snakemake_kochi.queue import by_hand
from snakemake_kochi.queue.views import find_job, list_jobs, list_workers, shared_workers
from snakemake_kochi.tickets.ticket import Ticket

from .conftest import COMMAND, Outcome


def submit(machine: MachinePaths, queue: str, ticket: Ticket) -> int:
    return by_hand.submit(machine, queue, ticket).job


Kochi = Callable[..., Outcome]
PATIENCE = 60.0


def found(data: Any, check: str) -> Any:
    """The only finding of a check."""
    (finding,) = (finding for finding in data["checks"] if finding["check"] == check)
    return finding


def entries(directory: Path) -> set[Path]:
    """All files and directories below one. Not by rglob, which raises an error if a directory goes
    away meanwhile."""
    walk = os.walk(directory)
    return {Path(parent, name) for parent, inner, names in walk for name in (*inner, *names)}


def trials(directory: Path) -> list[Path]:
    return [
        each for each in entries(directory) if each.name.startswith((".trial-", "kochi-doctor-"))
    ]


# ---- one node


def test_everything_is_measured_and_nothing_is_left(
    kochi: Kochi, project: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = kochi("doctor")
    assert done.status == 0, done.out
    lines = done.out.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "note", "warning"}
    where = tmp_path / "root" / "machines" / "local"
    for check in (
        "versions: snakemake_kochi",
        "CPUs: ",
        "memory: ",
        "GPUs: ",
        f"filesystem in {where}: ",
        f"space in {where}: ",
        f"clock in {where}: ",
        f"rename in {where}: replaced",
        *([f"claim in {where}: a file is renamed once, and a name that is taken stays"]),
        f"wake-up in {where}: ",
        f"speed in {where}: ",
        f"lock settings in {where / 'locks.json'}: not settled before the first use",
        f"lock in {where / 'locks'}: flock works",
        f"lock between processes in {where / 'locks'}: flock: a second process was kept out",
        f"rename in {project}: replaced",
        "between nodes: not tested. To do: Start a worker on another node",
    ):
        assert any(line[8:].startswith(check) for line in lines), check
    assert sorted(tmp_path.rglob("*")) == before
    assert git(project, "status", "--porcelain", "--ignored") == ""


def test_json_has_the_same_findings(kochi: Kochi) -> None:
    done = kochi("doctor", "--json")
    assert done.data["machine"] == "local"
    assert done.data["failed"] is False
    rename = found(done.data, "rename")
    assert (rename["verdict"], rename["advice"]) == ("ok", "")
    assert rename["directory"] == str(Root.find().machine("local").directory)


@pytest.fixture
def with_settings(project: Path) -> Callable[[str], None]:
    """Configure the machine `local`."""

    def configure(text: str) -> None:
        file = project / "kochi.yaml"
        file.write_text(f"{file.read_text()}machines: {{local: {{{text}}}}}\n")

    return configure


def test_the_configured_directory_and_kind_of_locks_are_tested(
    kochi: Kochi, with_settings: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    with_settings(f"lock_dir: {tmp_path / 'elsewhere'}, lock_kind: lease")
    done = kochi("doctor", "--json")
    assert done.status == 0, done.out
    excludes = found(done.data, "lock between processes")
    assert excludes["measured"].startswith("lease: a second process was kept out")
    assert Path(excludes["directory"]).parent == tmp_path / "elsewhere"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_locks_that_were_settled_otherwise_are_a_failure(
    kochi: Kochi, with_settings: Callable[[str], None], tmp_path: Path
) -> None:
    settle_locks(machine := Root.find().machine("local"))
    submit(machine, "q", Ticket("t", ("true",), "/"))
    with_settings("lock_kind: lease")
    done = kochi("doctor", "--json")
    assert done.status == 1
    settings = found(done.data, "lock settings")
    assert settings["verdict"] == "failed"
    assert "would write to one build, or commit to one branch, at once" in settings["measured"]
    # The locks in use are tested anyway.
    assert found(done.data, "lock")["measured"].startswith("flock works")


def test_a_missing_lock_dir_is_a_failure_and_is_not_made(
    kochi: Kochi, with_settings: Callable[[str], None], tmp_path: Path
) -> None:
    with_settings(f"lock_dir: {tmp_path / 'nowhere'}")
    done = kochi("doctor", "--json")
    assert done.status == 1
    assert found(done.data, "lock settings")["measured"] == (
        f"there is no directory {tmp_path / 'nowhere'}"
    )
    assert not (tmp_path / "nowhere").exists()


def test_a_root_that_cannot_be_made_is_a_failure(
    kochi: Kochi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KOCHI_ROOT", str(tmp_path / "file" / "root"))
    done = kochi("doctor")
    assert done.status == 1
    assert "failed  directory in " in done.out
    assert "Not a directory" in done.out
    assert done.err == ""


def injected(call: str, fault: str, *words: str) -> Outcome:
    """`kochi doctor` with a fault in a system call, in all its processes."""
    trace = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}"]
    done = subprocess.run(
        [*trace, "-e", f"inject={call}:{fault}", *COMMAND, "doctor", "--json", *words],
        capture_output=True,
        text=True,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_a_filesystem_without_locks_is_a_failure(tmp_path: Path) -> None:
    done = injected("flock", "error=ENOSYS")
    assert done.status == 1
    lock = found(done.data, "lock")
    assert lock["verdict"] == "failed"
    assert "does not support file locks" in lock["measured"]
    assert "lock_dir" in lock["advice"]


def test_locks_that_do_not_exclude_are_a_failure(tmp_path: Path) -> None:
    done = injected("flock", "retval=0")
    assert done.status == 1
    lock = found(done.data, "lock between processes")
    assert (lock["verdict"], lock["measured"]) == ("failed", "flock: two processes held it at once")


@pytest.mark.parametrize(
    ("call", "check", "advice"),
    [("flock", "lock", "lock_dir"), ("mkdir", "directory", "Check the filesystem")],
)
def test_a_hanging_check_is_a_failure_and_does_not_hang_the_doctor(
    tmp_path: Path, call: str, check: str, advice: str
) -> None:
    # Like a process that hangs in the kernel, a stopped one does not answer to SIGTERM.
    done = injected(call, "signal=SIGSTOP", "--deadline", "5")
    assert done.status == 1
    failed = [finding for finding in done.data["checks"] if finding["verdict"] == "failed"]
    assert {finding["check"] for finding in failed} == {check}
    assert failed[0]["measured"] == "no answer within 5 seconds: it hangs"
    assert advice in failed[0]["advice"]
    assert trials(tmp_path) == []


def interrupt(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130


def test_ctrl_c_leaves_nothing(project: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    process = subprocess.Popen([*COMMAND, "doctor"], stdout=subprocess.DEVNULL, text=True)
    wait_until(lambda: trials(tmp_path))
    interrupt(process)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_killed_doctor_leaves_no_files(project: Path, tmp_path: Path) -> None:
    before = entries(tmp_path)
    process = subprocess.Popen([*COMMAND, "doctor"], stdout=subprocess.DEVNULL)
    wait_until(lambda: trials(tmp_path))
    process.kill()
    process.wait(PATIENCE)
    wait_until(lambda: entries(tmp_path) == before)


# ---- two nodes


class OtherNode:
    """A worker that seems to be on another node: its host name and process numbers differ. `site`
    is a module that all Pythons there load when they start."""

    def __init__(self, directory: Path) -> None:
        self.machine = Root.find().machine("local")
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, site: str = "") -> None:
        (self._directory / "sitecustomize.py").write_text(site)
        path = f"{self._directory}{os.pathsep}{os.environ['PYTHONPATH']}"
        rename = 'hostname elsewhere && exec "$@"'
        self._process = subprocess.Popen(
            [
                *("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("bash", "-c", rename, "-", *COMMAND, "work", "-q", "q", "-b", "--cores", "1"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        there = self.machine.queues / "q"
        wait_until(lambda: there.exists() and shared_workers(self.machine, "q"))

    def end(self) -> None:
        if self._process is not None:
            # The first process of a PID namespace: its end ends all others.
            self._process.kill()
            self._process.wait(PATIENCE)


@pytest.fixture
def other_node(tmp_path: Path) -> Iterator[OtherNode]:
    (tmp_path / "site").mkdir()
    node = OtherNode(tmp_path / "site")
    yield node
    node.end()


def test_two_nodes_exclude_each_other_and_see_each_others_files(
    kochi: Kochi, other_node: OtherNode, tmp_path: Path
) -> None:
    other_node.start()
    done = kochi("doctor", "-q", "q", "--json")
    assert done.status == 0, done.out
    measured = {finding["check"]: finding["measured"] for finding in done.data["checks"]}
    assert measured["between nodes"] == "a worker on elsewhere answers"
    lock = "flock: elsewhere and this node keep each other out"
    assert measured["lock between nodes"] == lock
    assert "there and back" in measured["visibility between nodes"]
    assert measured["claim between nodes"].endswith("by elsewhere, each once")
    assert measured["clock between nodes"].startswith("the clock of elsewhere agrees")
    assert "by elsewhere: always there and whole" in measured["rename between nodes"]
    assert trials(tmp_path) == []
    (job,) = list_jobs(other_node.machine, ended=True)
    assert job.result is not None
    assert job.result.ok


def test_locks_of_one_node_only_and_a_wrong_clock_are_found(
    kochi: Kochi, other_node: OtherNode, tmp_path: Path
) -> None:
    other_node.start(
        "import sys\n"
        "if any(word.startswith('snakemake_kochi.doctor') for word in sys.orig_argv):\n"
        "    import fcntl, time\n"
        "    fcntl.flock = lambda *_: None\n"
        "    right = time.time\n"
        "    time.time = lambda: right() + 300\n"
    )
    done = kochi("doctor", "-q", "q", "--json")
    assert done.status == 1
    lock = found(done.data, "lock between nodes")
    assert (lock["verdict"], lock["measured"]) == (
        "failed",
        "flock: elsewhere got it while this node held it and this node got it while elsewhere held "
        "it",
    )
    clock = found(done.data, "clock between nodes")
    assert clock["verdict"] == "warning"
    assert clock["measured"].startswith("the clock of elsewhere is 300.0 s ahead of this node's")


def test_a_fault_of_the_other_node_is_reported(kochi: Kochi, other_node: OtherNode) -> None:
    other_node.start(
        "import sys\n"
        "if any(word.startswith('snakemake_kochi.doctor') for word in sys.orig_argv):\n"
        "    import errno, fcntl\n"
        "    def flock(*_):\n"
        "        raise OSError(errno.ENOSYS, 'not here')\n"
        "    fcntl.flock = flock\n"
    )
    done = kochi("doctor", "-q", "q", "--json")
    assert done.status == 1
    (failed,) = (finding for finding in done.data["checks"] if finding["verdict"] == "failed")
    assert failed["check"] == "lock between nodes"
    assert failed["measured"].startswith("on elsewhere: ")
    assert "does not support file locks" in failed["measured"]


def test_ctrl_c_cancels_the_waiting_job(other_node: OtherNode, tmp_path: Path) -> None:
    other_node.start()
    busy = submit(other_node.machine, "q", Ticket("busy", ("sleep", "600"), "/"))
    wait_until(lambda: find_job(other_node.machine, busy).state == "running")
    process = subprocess.Popen([*COMMAND, "doctor", "-q", "q"], stdout=subprocess.DEVNULL)
    wait_until(lambda: len(list_jobs(other_node.machine)) == 2)
    interrupt(process)
    result = find_job(other_node.machine, busy + 1).result
    assert result is not None
    assert result.reason == "cancelled"
    assert trials(tmp_path) == []


def test_a_worker_on_this_node_is_no_test_between_nodes(
    kochi: Kochi, worker: Callable[..., subprocess.Popen[str]]
) -> None:
    worker("here")
    done = kochi("doctor", "-q", "here", "--json")
    assert done.status == 0
    finding = found(done.data, "between nodes")
    assert finding["verdict"] == "warning"
    assert finding["measured"] == "not tested: only this node serves queue 'here'"
    assert list_jobs(Root.find().machine("local"), ended=True) == []


def test_a_queue_without_workers_is_a_failure(kochi: Kochi) -> None:
    done = kochi("doctor", "-q", "nobody")
    assert done.status == 1
    assert "failed  between nodes: no worker serves queue 'nobody'. To do: On another" in done.out


# ---- nodes from a scheduler (a real one: tests/slurm/test_doctor_allocations.py)


@pytest.mark.parametrize(
    "script", ["$KOCHI_WORKER_LAUNCH_CMD", "setsid $KOCHI_WORKER_LAUNCH_CMD >out 2>&1 &"]
)
def test_workers_of_an_alloc_script_leave_and_are_reported_as_on_this_node(
    kochi: Kochi, with_settings: Callable[[str], None], tmp_path: Path, script: str
) -> None:
    with_settings(f"alloc_script: '{script}'")
    done = kochi("doctor", "--allocations", "--json")
    assert done.status == 0, done.out
    between = found(done.data, "between nodes")
    assert (between["verdict"], between["measured"].partition(" (")[0]) == (
        "warning",
        "not tested: the allocation is on this node",
    )
    compute = found(done.data, "between compute nodes")
    assert compute["verdict"] == "warning"
    assert compute["measured"].startswith("not tested: both allocations are on ")
    machine = Root.find().machine("local")
    assert [worker.state for worker in list_workers(machine)] == ["left", "left"]
    for directory in (machine.allocations, machine.queues):
        assert not directory.exists() or list(directory.iterdir()) == []
    assert open_runs(machine.directory) == []
    assert trials(tmp_path) == []


def test_what_allocations_have_tested_is_no_warning_any_more(
    kochi: Kochi, with_settings: Callable[[str], None]
) -> None:
    with_settings("scheduler: slurm")
    tested = Root.find().machine("local").tested
    for is_tested in (False, True):
        if is_tested:
            write(tested, "")
        data = kochi("doctor", "--json").data
        between = found(data, "between nodes")
        assert between["verdict"] == ("ok" if is_tested else "note")
        assert between["measured"].startswith("tested by kochi doctor" if is_tested else "not")
        warned = [each["advice"] for each in data["checks"] if each["check"] == "filesystem"]
        assert not (is_tested and any("that all nodes see" in advice for advice in warned))


def test_with_a_scheduler_the_advice_is_to_test_with_allocations(
    kochi: Kochi, with_settings: Callable[[str], None]
) -> None:
    with_settings("scheduler: slurm")
    data = kochi("doctor", "--json").data
    assert found(data, "between nodes")["advice"] == "Type: kochi doctor --allocations"
    kinds = {"machines": "kochi_root must be", "proj": "The project must be"}
    for finding in (each for each in data["checks"] if each["check"] == "filesystem"):
        start = next(said for part, said in kinds.items() if part in finding["directory"])
        # Whatever the filesystem of this test is.
        is_of_one_node = "usually visible to this node only" in finding["measured"]
        assert (finding["verdict"] == "warning") == is_of_one_node
        assert finding["advice"].startswith(f"{start} on a filesystem that all") == is_of_one_node


def test_a_machine_without_a_scheduler_has_no_allocations(kochi: Kochi) -> None:
    done = kochi("doctor", "--allocations")
    assert done.status == 1
    assert "machine local has neither a scheduler nor an alloc_script" in done.err
    assert "kochi doctor -q QUEUE" in done.err
    assert kochi("doctor", "--allocations", "-q", "q").status == 2


# ---- cases that a test cannot set up on every computer


@pytest.mark.parametrize(
    ("path", "kind", "option"),
    [
        ("/home/u/x", "nfs4", "local_lock=none"),
        ("/home/u/l", "ext4", "rw"),
        ("/scratch/a b/x", "lustre", "localflock"),
        ("/scratches", "ext4", "rw"),
    ],
)
def test_a_directory_is_on_the_innermost_of_its_mounts(path: str, kind: str, option: str) -> None:
    mount = filesystem.find_mount(
        Path(path),
        [
            mounted("/", "ext4", "rw,discard"),
            mounted("/home", "autofs", "rw"),
            mounted("/home", "nfs4", "rw,vers=4.2,local_lock=none", "server:/home"),
            mounted("/home/u/l", "ext4", "rw,discard"),
            mounted("/scratch/a b", "lustre", "rw,localflock", "mds@tcp:/s"),
        ],
    )
    assert mount is not None
    assert mount.fstype == kind
    assert option in mount.opts.split(",")


def mounted(point: str, kind: str, options: str, device: str = "/dev/vda") -> Any:
    return SimpleNamespace(device=device, mountpoint=point, fstype=kind, opts=options)


def test_the_mounts_of_this_node_are_known(tmp_path: Path) -> None:
    assert filesystem.examine_filesystem(tmp_path).verdict in ("ok", "warning")
    assert " on /)" in filesystem.examine_filesystem(Path("/")).measured


def test_flock_of_one_node_only_is_seen_from_the_mount(tmp_path: Path) -> None:
    examine = partial(
        filesystem.examine_filesystem,
        tmp_path,
        mounts=[mounted("/", "nfs", "rw,vers=3,local_lock=all", "server:/")],
    )
    assert examine().verdict == "ok"
    assert examine(of_all="All must see it.").verdict == "ok"
    outcome = examine(for_flock=True)
    assert outcome.verdict == "warning"
    assert "local_lock=all: flock excludes processes of one node only" in outcome.measured


def test_a_filesystem_of_one_node_is_a_warning_if_other_nodes_need_it(tmp_path: Path) -> None:
    mounts = [mounted("/", "ext4", "rw,discard")]
    assert filesystem.examine_filesystem(tmp_path, mounts=mounts).verdict == "ok"
    outcome = filesystem.examine_filesystem(tmp_path, of_all="All must see it.", mounts=mounts)
    assert outcome.verdict == "warning"
    assert outcome.measured == "ext4 (/dev/vda on /): usually visible to this node only"
    assert outcome.advice == "All must see it."


@pytest.mark.parametrize(
    ("blocks", "inodes", "verdict"),
    [
        ((2**30, 2**29), (10**7, 10**6), "ok"),
        ((2**30, 2**29), (0, 0), "ok"),  # no fixed number
        ((2**30, 2**24), (10**7, 10**6), "warning"),  # 64 GiB, but less than 5 %
        ((2**19, 2**17), (10**7, 10**6), "warning"),  # half a GiB
        ((2**30, 2**29), (10**5, 9_000), "warning"),
        ((2**30, 2**29), (10**7, 10**5), "warning"),
    ],
)
def test_little_space_is_a_warning(
    blocks: tuple[int, int], inodes: tuple[int, int], verdict: str
) -> None:
    (size, free), (files_there, files_free) = blocks, inodes
    values = (4096, 4096, size, free, free, files_there, files_free, files_free, 0, 255)
    found = filesystem.examine_space(Path("/"), lambda _: os.statvfs_result(values))
    assert found.verdict == verdict
    # tests/executor/test_full_root.py: nothing is lost.
    assert ("results wait in their workers" in found.advice) == (verdict == "warning")


@pytest.mark.parametrize(
    "limits",
    [
        {"cpu.max": "50000 100000"},
        {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"},
    ],
)
def test_a_cgroup_that_slows_jobs_down_is_a_warning(tmp_path: Path, limits: dict[str, str]) -> None:
    for name, text in limits.items():
        (tmp_path / name).write_text(f"{text}\n")
    outcome = node.examine_cpus([tmp_path / "without", tmp_path])
    assert outcome.verdict == "warning"
    assert "a cgroup allows the time of 0.5 CPUs" in outcome.measured
    assert "--cores 1" in outcome.advice


@pytest.mark.parametrize("texts", [("max 100000",), ("-1", "100000"), ()])
def test_a_cgroup_without_a_limit_is_none(tmp_path: Path, texts: tuple[str, ...]) -> None:
    names = ("cpu.max",) if len(texts) == 1 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    for name, text in zip(names, texts, strict=False):
        (tmp_path / name).write_text(text)
    assert node.examine_cpus([tmp_path]).verdict != "warning"


def test_gpus_are_those_that_a_worker_would_give_to_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A100 (UUID: GPU-12ab-34cd)'\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in (node.CUDA, node.HIP, node.ROCR):
        monkeypatch.delenv(name, raising=False)
    outcome = node.examine_gpus()
    assert outcome.verdict == "ok"
    assert outcome.measured == (
        "1 listed by nvidia-smi; a worker started here gives out GPU-12ab-34cd"
    )
    monkeypatch.setenv(node.CUDA, "")
    assert "gives out none; CUDA_VISIBLE_DEVICES=" in node.examine_gpus().measured
    monkeypatch.delenv(node.CUDA)
    program.write_text("#!/bin/sh\nexit 9\n")
    assert node.examine_gpus().verdict == "warning"


def test_the_time_of_a_call_says_how_many_short_jobs_a_filesystem_leaves_room_for() -> None:
    slow = judge_speed(10.0)
    assert slow.verdict == "note"
    assert "Start several workers" in slow.advice
    alone = 100 / (CALLS_PER_TICKET)
    rate = f"{alone:.0f}"
    said = f"10 ms for a metadata call: at most {rate} short jobs a second by one worker"
    assert slow.measured == said
    fast = judge_speed(0.01)
    assert (fast.verdict, fast.advice) == ("ok", "")
    assert f"at most {1000 * alone:,.0f} short jobs" in fast.measured


def test_a_missing_or_partial_file_is_a_failure(tmp_path: Path) -> None:
    faults = [FileNotFoundError(), DamagedFileError("half"), OSError("stale")]
    answers = iter([*faults, {"last": True}])

    def read(*_: object) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    seen = filesystem.read_versions(tmp_path / "document", read=read)
    assert (seen.reads, seen.missing, seen.partial, seen.stale, seen.ended) == (4, 1, 1, 1, True)
    outcome = filesystem.judge_sightings(seen, 3, "n2")
    assert outcome.verdict == "failed"
    assert "1 times missing and 1 times only in part" in outcome.measured


def test_a_reader_that_does_not_see_the_last_version_is_a_failure(tmp_path: Path) -> None:
    filesystem.write_version(tmp_path / "document")
    seen = filesystem.read_versions(tmp_path / "document", patience=0.01)
    assert not seen.ended
    assert filesystem.judge_sightings(seen, 1, "n2").verdict == "failed"


def test_the_reader_is_another_process_and_reports_what_it_saw(tmp_path: Path) -> None:
    outcome = peer.examine_rename(TrialPaths(tmp_path))
    assert outcome.verdict == "ok"
    assert " times by another process: always there and whole" in outcome.measured
