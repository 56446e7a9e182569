"""The time of a script: when it is over, nothing that the script started goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import wait_until

from snakemake_kochi.phases import script as module
from snakemake_kochi.phases.script import Ended, Environment, run_script
from snakemake_kochi.processes import ProcessIdentity

STUBBORN = """
trap '' TERM
setsid sh -c "trap '' TERM; echo \\$\\$ > in_session; exec sleep 60" &
sleep 60 &
echo $! > child
echo begun
wait
"""


class Clock:
    """It begins to run when these files are complete."""

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
    # However late the script begins here.
    clock = Clock(*(tmp_path / name for name in (*files, "output")))
    fake = SimpleNamespace(monotonic=clock, sleep=time.sleep, time=time.time)
    monkeypatch.setattr(module, "time", fake)
    environment, output = Environment("", [], {}), tmp_path / "output"
    began = time.monotonic()
    found = run_script(script, "x", tmp_path, environment, True, tmp_path, output, timeout=0.7)
    assert 0.7 <= time.monotonic() - began < 30
    assert (found.status, found.timeout, found.has_failed) == (status, 0.7, True)
    assert output.read_text() == "begun\n"
    assert found.reason("the script") == (
        "timeout: the script ran for longer than its timeout of 0.7 s"
    )
    for file in tmp_path.glob("*"):
        if file.name in ("child", "in_session"):
            started = ProcessIdentity.of(int(file.read_text()))
            assert started is None or not started.is_alive(), file.name


def test_a_script_within_its_time_is_left_alone(tmp_path: Path) -> None:
    environment = Environment("", [], {})
    found = run_script("exit 3", "x", tmp_path, environment, True, tmp_path, timeout=60)
    assert (found.status, found.timeout, found.how) == (3, None, "ended with exit status 3")


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

    environment, thread = Environment("", [], {}), threading.Thread(target=let_go)
    thread.start()
    script = f"echo $$ > bash\n{script}"
    found = run_script(
        *(script, "x", directory, environment, True, directory, directory / "output"), **options
    )
    thread.join()
    return found


@pytest.mark.parametrize(
    "script",
    [f"exec > >({LATE} > out); echo whole", f"echo whole | tee >({LATE} | cat > out) > /dev/null"],
)
def test_what_the_pipeline_of_a_script_still_writes_is_waited_for(
    tmp_path: Path, script: str
) -> None:
    assert not run_until(tmp_path, script).has_failed
    assert (tmp_path / "out").read_text() == "whole\n"


def test_what_writes_to_a_file_of_a_script_is_waited_for(tmp_path: Path) -> None:
    script = "{ until [ -e go ]; do sleep 0.02; done; echo whole; } > out 2> /dev/null &"
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
