"""The time of a script: when it is over, nothing that the script started goes on."""

from __future__ import annotations

import time
from pathlib import Path

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


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("echo begun; sleep 60 & echo $! > child; wait", 143),
        ("trap 'exit 0' TERM; echo begun; sleep 60 & echo $! > child; wait", 0),
        (STUBBORN, 137),
    ],
)
def test_a_script_is_ended_after_its_time_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: int
) -> None:
    monkeypatch.setattr(ending, "GRACE", 0.3)
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
