"""The script of a user: its environment, its end, its limit of time, and its workspace."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from full_disk import mounted
from support import wait_until

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.phases import __main__ as phases
from snakemake_kochi.phases import script as module
from snakemake_kochi.phases.products import give_repository, scratch_directory
from snakemake_kochi.phases.script import Ended, Environment, run_script
from snakemake_kochi.processes import ProcessIdentity

PLAIN = Environment("", [], {"WORDS": "hello"})


def ended(directory: Path, script: str, environment: Environment = PLAIN, **options: Any) -> Ended:
    """How a script ends whose output is in the file `output`."""
    place = (directory, environment, options.pop("strict", True), directory)
    return run_script(script, options.pop("name", "x"), *place, directory / "output", **options)


# ---- how it begins and ends


def test_the_end_of_a_script_is_seen_with_what_its_processes_took(tmp_path: Path) -> None:
    busy = f"echo $WORDS; '{sys.executable}' -c 'x = bytearray(200 << 20); sum(range(10**6))'"
    found = ended(tmp_path, f"{busy}; exit 3")
    assert (found.status, (tmp_path / "output").read_text()) == (3, "hello\n")
    assert (found.timeout, found.how) == (None, "ended with exit status 3")
    assert found.usage["peak_memory_mb"] >= 200
    assert 0.01 < found.usage["user_seconds"] + found.usage["system_seconds"] < 60
    assert ended(tmp_path, "kill -KILL $$").status == 128 + signal.SIGKILL
    assert run_script("true", "x", tmp_path, PLAIN, True, tmp_path, timeout=60).status == 0


def test_a_phase_hardly_wakes_while_its_script_runs(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    ended(tmp_path, "echo first; sleep 2")
    # To start the script and to see its end are some. 20 looks a second would be 40 more.
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 25


def test_the_loading_of_the_environment_is_timed_beside_the_script(tmp_path: Path) -> None:
    def seconds(loaded: str, script: str) -> float:
        return ended(tmp_path, script, Environment(loaded, [], {})).environment_seconds

    assert seconds("", "sleep 0.1") == 0
    began = time.time()
    assert 0.3 <= seconds("sleep 0.3", "sleep 1") <= time.time() - began - 1
    assert seconds("sleep 0.3; exit 1", "true") >= 0.3
    for loaded in ("printf() { :; }; date() { :; }", "set -o noclobber -x", "set -o noclobber -x"):
        assert 0 < seconds(loaded, "sleep 1") < 1
    assert "EPOCH" not in (said := (tmp_path / "output").read_text()) and "+ sleep 1" in said
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = {"started": start.timestamp(), "seconds": 5.0, "environment_seconds": 1.5}
    assert Ended(0, None, **times).times == {
        "seconds": 3.5,
        "environment_seconds": 1.5,
        "started": (start + timedelta(seconds=1.5)).isoformat(),
        "ended": (start + timedelta(seconds=5)).isoformat(),
    }


@pytest.mark.parametrize("loaded", ["", "loaded=yes\n: and more lines\n"])
@pytest.mark.parametrize("strict", [True, False])
def test_bash_reports_a_script_by_its_own_file_and_line_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: str, strict: bool
) -> None:
    # As through ssh, where a bash with -c may read ~/.bashrc.
    (tmp_path / ".bashrc").write_text("echo from .bashrc\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_CLIENT", "127.0.0.1 1 22")
    monkeypatch.delenv("SHLVL", raising=False)
    script = "echo $0 ${BASH_SOURCE[0]} $LINENO ${loaded-no}\nno-such-program\necho after"
    options: dict[str, Any] = {"name": "it's", "strict": strict, "before": "known=1\n\n"}
    found, file = ended(tmp_path, script, Environment(loaded, [], {}), **options), tmp_path / "it's"
    assert (tmp_path / "output").read_text().splitlines() == [
        f"{file}.sh {file}.sh 1 {'yes' if loaded else 'no'}",
        f"{file}.sh: line 2: no-such-program: command not found",
        *([] if strict else ["after"]),
    ]
    assert found.status == (127 if strict else 0)


STUBBORN = """
trap '' TERM
setsid sh -c "trap '' TERM; echo \\$\\$ > in_session; exec sleep 60" &
sleep 60 &
echo $! > child
echo begun
wait
"""


class Clock:
    """It begins to run when these files are complete, however late the script begins here."""

    def __init__(self, *files: Path) -> None:
        self._files = files
        self._began: float | None = None

    def __call__(self) -> float:
        if self._began is None and all(
            file.exists() and file.read_text().endswith("\n") for file in self._files
        ):
            self._began = time.monotonic()
        return 0.0 if self._began is None else time.monotonic() - self._began


@pytest.mark.parametrize(
    ("script", "status", "files"),
    [
        ("echo begun; sleep 60 & echo $! > child; wait", 143, ["child"]),
        ("trap 'exit 0' TERM; echo begun; sleep 60 & echo $! > child; wait", 0, ["child"]),
        (STUBBORN, 137, ["child", "in_session"]),
    ],
)
def test_a_script_is_ended_after_its_time_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: int, files: list[str]
) -> None:
    if status == 137:
        monkeypatch.setattr(module, "GRACE", 0.3)
    clock = Clock(*(tmp_path / name for name in (*files, "output")))
    fake = SimpleNamespace(monotonic=clock, sleep=time.sleep, time=time.time)
    monkeypatch.setattr(module, "time", fake)
    began = time.monotonic()
    found = ended(tmp_path, script, timeout=0.7)
    assert 0.7 <= time.monotonic() - began < 30
    assert (found.status, found.timeout, found.has_failed) == (status, 0.7, True)
    assert (tmp_path / "output").read_text() == "begun\n"
    said = "timeout: the script ran for longer than its timeout of 0.7 s"
    assert found.reason("the script") == said
    for name in files:
        started = ProcessIdentity.of(int((tmp_path / name).read_text()))
        assert started is None or not started.is_alive(), name


# ---- what it leaves

# It has read all when bash has ended, and writes when the file `go` is there.
LATE = "bash -c 'x=$(cat); until [ -e go ]; do sleep 0.02; done; echo \"$x\"'"


def run_until(directory: Path, script: str, **options: Any) -> Ended:
    """Run a script; the file `go` is made when its bash, whose number is in `bash`, has ended."""
    bash = directory / "bash"

    def let_go() -> None:
        wait_until(lambda: bash.exists() and bash.read_text().endswith("\n"), "the start of bash")
        process = ProcessIdentity.of(int(bash.read_text()))
        wait_until(lambda: process is None or not process.is_alive(), "the end of bash")
        (directory / "go").touch()

    thread = threading.Thread(target=let_go)
    thread.start()
    found = ended(directory, f"echo $$ > bash\n{script}", **options)
    thread.join()
    return found


@pytest.mark.parametrize(
    "script",
    [
        f"exec > >({LATE} > out); echo whole",
        f"echo whole | tee >({LATE} | cat > out) > /dev/null",
        "{ until [ -e go ]; do sleep 0.02; done; echo whole; } > out 2> /dev/null &",
    ],
)
def test_what_still_writes_to_a_file_of_a_script_is_waited_for(tmp_path: Path, script: str) -> None:
    assert not run_until(tmp_path, script, files=[tmp_path / "out"]).has_failed
    assert (tmp_path / "out").read_text() == "whole\n"


def test_a_pipeline_that_does_not_end_fails_its_script_with_its_names(tmp_path: Path) -> None:
    found = run_until(tmp_path, "echo x | tee >(exec sleep 600) > /dev/null", timeout=1.0)
    assert (found.has_failed, found.status) == (True, 124)
    said = found.reason("the script")
    assert said.startswith("timeout: the script left processes that do not end: sleep (")


def test_a_daemon_of_a_script_goes_on_and_what_holds_its_output_does_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "setsid sleep 600 &> /dev/null & echo $! > daemon; sleep 601 & echo $! > holder"
    assert not run_until(tmp_path, script).has_failed
    (daemon, holder) = (int((tmp_path / name).read_text()) for name in ("daemon", "holder"))
    try:
        assert (ProcessIdentity.of(daemon) or pytest.fail("it has ended")).is_alive()
        assert ProcessIdentity.of(holder) is None
        assert "kochi: ending sleep (" in capfd.readouterr().err
    finally:
        os.kill(daemon, signal.SIGKILL)
        os.waitpid(daemon, 0)


def test_what_only_holds_the_output_of_a_script_has_a_moment_to_save(tmp_path: Path) -> None:
    # It starts no process meanwhile: that would be ended, too.
    wait = "end=$((${EPOCHREALTIME/./} + 500000)); until ((${EPOCHREALTIME/./} > end)); do :; done"
    for trap in (f"trap '{wait}; echo saved > saved; exit' TERM", "trap '' TERM"):
        text = f"{trap}\ntouch ready\nwhile :; do sleep 0.02; done\n"
        (tmp_path / "holder.sh").write_text(text)
        script = "bash holder.sh & echo $! > holder; until [ -e ready ]; do sleep 0.02; done"
        assert not run_until(tmp_path, script).has_failed
        assert ProcessIdentity.of(int((tmp_path / "holder").read_text())) is None
        (tmp_path / "ready").unlink()
    assert (tmp_path / "saved").read_text() == "saved\n"


# ---- its workspace

HOLD = """\
import os, pathlib, sys
from snakemake_kochi.phases.products import scratch_directory
with scratch_directory(pathlib.Path(sys.argv[1])) as directory:
    print(directory.name, flush=True)
    sys.stdin.readline()
    os._exit(0)  # as one that is killed
"""
NEW_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
# A node that had this boot, or this boot and name, as /proc and uname(2) say it.
EARLIER_BOOT = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
OTHER_HOST = f"hostname another && {EARLIER_BOOT}"


@pytest.fixture
def held() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def hold(held: list[subprocess.Popen[str]], workspaces: Path, *around: str) -> str:
    """Have a process begin to use a workspace; return the name of that."""
    process = subprocess.Popen(
        [*around, sys.executable, "-c", HOLD, str(workspaces)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    held.append(process)
    assert process.stdout is not None
    return process.stdout.readline().strip()


def look(workspaces: Path) -> set[str]:
    """What is left when another phase has begun here."""
    with scratch_directory(workspaces) as own:
        return set(os.listdir(workspaces)) - {own.name}


def test_a_workspace_in_use_stays_and_that_of_a_dead_process_goes(
    tmp_path: Path, held: list[subprocess.Popen[str]]
) -> None:
    name = hold(held, tmp_path)
    assert look(tmp_path) == {name}
    held[0].communicate("\n")
    assert look(tmp_path) == set()
    # A process in another namespace of processes is not seen.
    inside = hold(held, tmp_path, *NEW_NAMESPACE)
    assert look(tmp_path) == {inside}
    outside, other = hold(held, tmp_path), hold(held, tmp_path, *NEW_NAMESPACE)
    assert {inside, outside, other} <= set(os.listdir(tmp_path)), "seen from inside, too"


@pytest.mark.parametrize("is_this_host", [True, False])
def test_workspaces_of_an_earlier_boot_of_this_host_are_removed_and_no_others(
    tmp_path: Path, held: list[subprocess.Popen[str]], is_this_host: bool
) -> None:
    boot = tmp_path / "boot"
    boot.write_text(f"{uuid.uuid4()}\n")
    script = EARLIER_BOOT if is_this_host else OTHER_HOST
    workspaces = tmp_path / "workspaces"
    crashed = hold(held, workspaces, "unshare", "--mount", "--uts", "sh", "-c", script, str(boot))
    held[0].communicate("\n")
    assert crashed
    assert look(workspaces) == (set() if is_this_host else {crashed})


def test_a_full_disk_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, full = tmp_path / "kept", tmp_path / "full"
    for name in ("HEAD", "config", "refs/heads/main"):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_text("x" * 5000)
    with mounted(full) as disk:
        (full / "copy").mkdir()
        disk.fill()
        with pytest.raises(PhaseError) as caught:
            give_repository(str(kept), full / "copy")
        assert f"{full}/copy/.git" in str(caught.value)
        assert str(caught.value).endswith(": No space left on device")

        def write(*_: object) -> None:
            (full / "script.sh").write_text("x" * 5000)

        # whatever a phase writes there
        monkeypatch.setitem(phases.PHASES, "build", write)
        monkeypatch.setenv("KOCHI_FREEZE", str(tmp_path / "freeze"))
        assert phases.main(["build", "a.yaml", "--output", str(tmp_path / "built")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("kochi: ") and said.count("\n") == 1
    assert said.endswith("No space left on device\n")
