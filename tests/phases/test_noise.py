"""What disturbs a run on its node, and what is beyond the thresholds."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from support import write

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.phases.node import Noise
from snakemake_kochi.project.configuration import load_project

SYSTEM = {"governor": "powersave", "turbo": True}
CALM = {"governor": "performance", "turbo": None}


def node(root: Path, busy: int, stalled: int, throttled: int) -> Path:
    """`busy` in ticks; `stalled` in microseconds."""
    write(root / "proc/stat", f"cpu  {busy} 0 0 1000 5 0 0 0 0 0\ncpu0 1 1 1\n")
    some = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled}\n"
    write(root / "proc/pressure/memory", some)
    for cpu in os.sched_getaffinity(0):
        own = root / f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        write(own / "core_throttle_count", f"{throttled}\n")
        write(own / "package_throttle_count", "0\n")
    return root


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reading is two seconds after the first."""
    moments = iter([100.0, 102.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))


def test_what_other_processes_did_is_told(tmp_path: Path, later: None) -> None:
    noise = Noise(node(tmp_path, 1000, 0, 3))
    node(tmp_path, 1500, 100_000, 4)
    found = noise.found(1.0, SYSTEM, {})
    count = len(os.sched_getaffinity(0))
    assert found["other_cpus"] == 2.0  # five seconds in two, of which the run had one
    assert found["memory_pressure"] == 5.0
    assert found["throttled"] == count
    assert found["warnings"] == [
        "load: other processes used 2.0 CPUs",
        "memory_pressure: processes waited for memory for 5.0 % of the time",
        f"throttled: CPUs were throttled {count} times during the run",
        "governor: powersave",
    ]


def test_any_turns_a_warning_off(tmp_path: Path, later: None) -> None:
    noise = Noise(node(tmp_path, 1000, 0, 3))
    node(tmp_path, 1500, 0, 3)
    limits = dict.fromkeys(("load", "governor"), "any")
    assert noise.found(1.0, SYSTEM, limits)["warnings"] == []


def test_what_the_kernel_does_not_tell_gives_no_warning(tmp_path: Path, later: None) -> None:
    found = Noise(tmp_path).found(1.0, {"governor": None, "turbo": None}, {})
    assert (found.pop("warnings"), found.pop("load_limit")) == ([], 0.5)
    assert set(found.values()) == {None}


def test_nothing_is_said_about_the_processes_beside_a_short_run() -> None:
    found = Noise().found(0.0, CALM, {"load": 0})
    assert (found["other_cpus"], found["memory_pressure"], found["warnings"]) == (None, None, [])


def test_what_other_processes_used_beside_a_short_run_is_recorded_for_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([100.0, 100.3])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    noise = Noise(node(tmp_path, 1000, 0, 3))
    node(tmp_path, 1050, 0, 3)
    found = noise.found(0.2, CALM, {"load": 0})
    assert (found["other_cpus"], found["other_cpu_seconds"]) == (None, 0.3)
    assert found["warnings"] == []


def test_other_jobs_of_kochi_are_named_as_such(tmp_path: Path, later: None) -> None:
    counts = iter([1, 2])
    noise = Noise(node(tmp_path, 1000, 0, 3), count_jobs=lambda: next(counts))
    node(tmp_path, 1500, 0, 3)
    found = noise.found(1.0, CALM, {})
    assert found["other_jobs"] == 2
    said = "load: other processes used 2.0 CPUs, among them 2 other jobs of Kochi"
    assert found["warnings"] == [said]


def test_a_process_that_uses_a_cpu_beside_the_run_is_seen() -> None:
    noise = Noise()
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as other:
        time.sleep(1.2)
        found = noise.found(0.0, CALM, {"load": 0.1})
        other.kill()
    assert found["warnings"][0].startswith("load: other processes used ")


@pytest.mark.parametrize(
    ("quiet", "said"),
    [
        ("{lod: 1}", "unknown key, did you mean 'load'?"),
        ("{load: much}", "quiet.load: 'much': a number from 0, or any, was expected"),
        ("{load: -1}", "quiet.load: '-1': a number from 0, or any, was expected"),
    ],
)
def test_a_wrong_threshold_is_told(quiet: str, said: str) -> None:
    for text in (f"quiet: {quiet}\n", f"machines: {{local: {{quiet: {quiet}}}}}\n"):
        with pytest.raises(ConfigError) as refused:
            load_project(Path("/project"), text)
        assert said in str(refused.value)


def test_thresholds_of_a_machine_count_there() -> None:
    text = "quiet: {load: 2, governor: any}\nmachines: {a: {quiet: {load: any, governor: x}}}\n"
    project = load_project(Path("/project"), text)
    assert dict(project.quiet) == {"load": 2.0, "governor": "any"}
    assert dict(project.machine("a").quiet) == {"load": "any", "governor": "x"}
