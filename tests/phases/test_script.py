"""Workspaces: a living process keeps its own, whatever can be seen of it; a dead one's goes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from full_disk import mounted

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.phases import __main__ as phases
from snakemake_kochi.phases.record import times_of
from snakemake_kochi.phases.script import Ended, Environment, Stopwatch, run_script
from snakemake_kochi.phases.workspace import give_repository, scratch_directory

HOLD = """\
import os, pathlib, sys
from snakemake_kochi.phases.workspace import scratch_directory
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


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.communicate("\n")


def look(workspaces: Path) -> set[str]:
    """What is left when another phase has begun here."""
    with scratch_directory(workspaces) as own:
        return set(os.listdir(workspaces)) - {own.name}


def test_a_workspace_in_use_stays_and_that_of_a_dead_process_goes(
    tmp_path: Path, held: list[subprocess.Popen[str]]
) -> None:
    name = hold(held, tmp_path)
    assert look(tmp_path) == {name}
    end(held[0])
    assert look(tmp_path) == set()


def test_a_process_in_another_pid_namespace_keeps_its_workspace(
    tmp_path: Path, held: list[subprocess.Popen[str]]
) -> None:
    inside = hold(held, tmp_path, *NEW_NAMESPACE)
    assert look(tmp_path) == {inside}
    outside = hold(held, tmp_path)
    other = hold(held, tmp_path, *NEW_NAMESPACE)
    assert {inside, outside, other} <= set(os.listdir(tmp_path)), "seen from inside, too"


@pytest.mark.parametrize("is_this_host", [True, False])
def test_workspaces_of_an_earlier_boot_of_this_host_are_removed_and_no_others(
    tmp_path: Path, held: list[subprocess.Popen[str]], is_this_host: bool
) -> None:
    boot = tmp_path / "boot"
    boot.write_text(f"{uuid.uuid4()}\n")
    script = EARLIER_BOOT if is_this_host else OTHER_HOST
    around = ("unshare", "--mount", "--uts", "sh", "-c", script, str(boot))
    workspaces = tmp_path / "workspaces"
    crashed = hold(held, workspaces, *around)
    end(held[0])
    assert crashed
    assert look(workspaces) == (set() if is_this_host else {crashed})


def test_the_end_of_a_script_is_seen_with_what_its_processes_took(tmp_path: Path) -> None:
    environment = Environment("", [], {"WORDS": "hello"})

    def ended(script: str, output: Path | None) -> Ended:
        return run_script(script, "x", tmp_path, environment, True, tmp_path, output)

    busy = f"echo $WORDS; '{sys.executable}' -c 'x = bytearray(200 << 20); sum(range(10**6))'"
    found = ended(f"{busy}; exit 3", tmp_path / "output")
    assert (found.status, (tmp_path / "output").read_text()) == (3, "hello\n")
    assert found.usage["peak_memory_mb"] >= 200
    assert 0.01 < found.usage["user_seconds"] + found.usage["system_seconds"] < 60
    assert ended("kill -KILL $$", None).status == 128 + signal.SIGKILL
    assert ended("true", None).status == 0


def test_a_phase_hardly_wakes_while_its_script_runs(tmp_path: Path) -> None:
    environment, output = Environment("", [], {}), tmp_path / "output"
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    words = ("echo first; sleep 2", "x", tmp_path, environment, True, tmp_path, output)
    run_script(*words)
    # To start the script and to see its end are some. 20 looks a second would be 40 more.
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 25


def test_the_loading_of_the_environment_is_timed_beside_the_script(tmp_path: Path) -> None:
    def seconds(loaded: str, script: str) -> float:
        environment = Environment(loaded, [], {})
        output = tmp_path / "output"
        ended = run_script(script, "x", tmp_path, environment, True, tmp_path, output)
        return ended.environment_seconds

    assert seconds("", "sleep 0.1") == 0
    began = time.time()
    assert 0.3 <= seconds("sleep 0.3", "sleep 1") <= time.time() - began - 1
    assert seconds("sleep 0.3; exit 1", "true") >= 0.3
    for loaded in ("printf() { :; }; date() { :; }", "set -o noclobber -x", "set -o noclobber -x"):
        assert 0 < seconds(loaded, "sleep 1") < 1
    assert "EPOCH" not in (said := (tmp_path / "output").read_text()) and "+ sleep 1" in said
    start = datetime(2026, 1, 1, tzinfo=UTC)
    watch = Stopwatch(started=start.timestamp(), seconds=5.0)
    found = times_of(watch, Ended(0, None, environment_seconds=1.5))
    assert (found["seconds"], found["environment_seconds"]) == (3.5, 1.5)
    assert found["started"] == (start + timedelta(seconds=1.5)).isoformat()
    assert found["ended"] == (start + timedelta(seconds=5)).isoformat()


@pytest.mark.parametrize("loaded", ["", "loaded=yes\n: and more lines\n"])
@pytest.mark.parametrize("strict", [True, False])
def test_bash_reports_a_script_by_its_own_file_and_line_numbers(
    tmp_path: Path, loaded: str, strict: bool
) -> None:
    output, file = tmp_path / "output", tmp_path / "it's.sh"
    script = "echo $0 ${BASH_SOURCE[0]} $LINENO ${loaded-no}\nno-such-program\necho after"
    environment = Environment(loaded, [], {})
    ended = run_script(
        script, "it's", tmp_path, environment, strict, tmp_path, output, before="known=1\n\n"
    )
    assert output.read_text().splitlines() == [
        f"{file} {file} 1 {'yes' if loaded else 'no'}",
        f"{file}: line 2: no-such-program: command not found",
        *([] if strict else ["after"]),
    ]
    assert ended.status == (127 if strict else 0)


def test_a_script_that_was_started_through_ssh_does_not_read_the_users_bashrc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".bashrc").write_text("echo from .bashrc\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_CLIENT", "127.0.0.1 1 22")
    monkeypatch.delenv("SHLVL", raising=False)
    output = tmp_path / "output"
    run_script("echo script", "run", tmp_path, Environment("", [], {}), True, tmp_path, output)
    assert output.read_text() == "script\n"


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
        monkeypatch.setattr(phases, "_build", write)
        monkeypatch.setenv("KOCHI_FREEZE", str(tmp_path / "freeze"))
        assert phases.main(["build", "a.yaml", "--output", str(tmp_path / "built")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("kochi: ")
    assert said.endswith("No space left on device\n")
    assert said.count("\n") == 1
