"""The time of a script: when it is over, nothing that the script started goes on."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from snakemake_kochi.phases import ending
from snakemake_kochi.phases.script import Environment, run_script
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
        monkeypatch.setattr(ending, "GRACE", 0.3)
    # However late the script begins here.
    clock = Clock(*(tmp_path / name for name in (*files, "output")))
    monkeypatch.setattr(ending, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
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
