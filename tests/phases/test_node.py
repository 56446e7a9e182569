"""What a record says of its node, read from files as kernels have them: what it is, and what
disturbed a run there."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support import write

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.phases.node import Noise, hardware, system
from snakemake_kochi.project.configuration import load_project

CPUS = "sys/devices/system/cpu"
CALM = {"governor": "performance", "turbo": None}
COUNT = len(os.sched_getaffinity(0))


def make_node(root: Path, cores: list[str], sockets: list[str], older: bool = False) -> Path:
    """Files of a node whose cores and sockets have these CPUs, each in the kernel's notation."""
    names = ("thread_siblings_list", "core_siblings_list") if older else ()
    core_name, socket_name = names or ("core_cpus_list", "package_cpus_list")
    for name, groups in ((core_name, cores), (socket_name, sockets)):
        for group in groups:
            for part in group.split(","):
                first, _, last = part.partition("-")
                for cpu in range(int(first), int(last or first) + 1):
                    write(root / CPUS / f"cpu{cpu}/topology" / name, f"{group}\n")
    write(root / CPUS / "online", f"{','.join(sockets)}\n")
    return root


def test_hardware_is_counted_on_old_and_new_kernels(tmp_path: Path) -> None:
    node = make_node(tmp_path / "a", ["0,4", "1,5", "2,6", "3,7"], ["0-1,4-5", "2-3,6-7"])
    text = "processor\t: 0\nmodel name\t: Fast  CPU @ 2GHz\n\nprocessor\t: 1\nmodel name\t: B\n"
    write(node / "proc/cpuinfo", text)
    write(node / "proc/meminfo", "MemFree: 1 kB\nMemTotal:       16318036 kB\n")
    assert hardware(node) == {
        "architecture": os.uname().machine,
        "cpu_model": "Fast CPU @ 2GHz",
        "sockets": 2,
        "cores": 4,
        "threads": 8,
        "memory_mb": 15935,
    }
    found = hardware(make_node(tmp_path / "b", ["0-1", "2-3", "4", "5"], ["0-5"], older=True))
    assert (found["sockets"], found["cores"], found["threads"]) == (1, 4, 6)


def test_what_cannot_be_read_is_null(tmp_path: Path) -> None:
    assert [value for value in hardware(tmp_path).values() if value] == [os.uname().machine]
    assert [value for value in system(None, tmp_path).values() if value] == [os.uname().release]
    # Not numbers, and a topology that does not agree with the CPUs that are online.
    node = make_node(tmp_path / "odd", ["0-1"], ["0-1"])
    write(node / CPUS / "online", "0-3\n")
    write(node / "proc/meminfo", "MemTotal: many\n")
    found = hardware(node)
    assert [found[n] for n in ("sockets", "cores", "threads", "memory_mb")] == [None, None, 4, None]
    write(node / CPUS / "online", "all\n")
    assert hardware(node)["threads"] is None


def test_governor_turbo_and_system_are_those_that_the_kernel_shows(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    write(tmp_path / CPUS / f"cpu{first}/cpufreq/scaling_governor", "powersave\n")
    write(tmp_path / CPUS / "cpufreq/boost", "0\n")
    write(tmp_path / "etc/os-release", 'NAME="A"\nPRETTY_NAME="A Linux 9"\n')
    seen = system(0.5, tmp_path)
    assert (seen["governor"], seen["turbo"]) == ("powersave", False)
    assert (seen["os"], seen["load"]) == ("A Linux 9", 0.5)
    write(tmp_path / CPUS / "intel_pstate/no_turbo", "0\n")
    assert system(0.5, tmp_path)["turbo"] is True


def node(root: Path, busy: int, stalled: int, throttled: int) -> Path:
    """`busy` in ticks; `stalled` in microseconds."""
    write(root / "proc/stat", f"cpu  {busy} 0 0 1000 5 0 0 0 0 0\ncpu0 1 1 1\n")
    some = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled}\n"
    write(root / "proc/pressure/memory", some)
    for cpu in os.sched_getaffinity(0):
        own = root / CPUS / f"cpu{cpu}/thermal_throttle"
        write(own / "core_throttle_count", f"{throttled}\n")
        write(own / "package_throttle_count", "0\n")
    return root


LOUD = [
    "load: other processes used 2.0 CPUs",
    "memory_pressure: processes waited for memory for 5.0 % of the time",
    f"throttled: CPUs were throttled {COUNT} times during the run",
    "governor: powersave",
]


@pytest.mark.parametrize(
    ("seconds", "own", "limits", "jobs", "expected"),
    [
        # Five CPU seconds in two, of which the run had one.
        (2.0, 1.0, {}, None, {"other_cpus": 2.0, "memory_pressure": 5.0, "warnings": LOUD}),
        (2.0, 1.0, {}, 2, {"other_jobs": 2, "warnings": [f"{LOUD[0]}, among them 2", *LOUD[1:]]}),
        (2.0, 1.0, {"load": "any", "governor": "any"}, None, {"warnings": LOUD[1:3]}),
        # Of a short run only what sums can use.
        (0.3, 1.0, {"load": 0}, None, {"other_cpus": None, "other_cpu_seconds": 4.0}),
        (2.0, None, {}, None, {"other_cpus": None, "warnings": LOUD[1:]}),
    ],
)
def test_what_disturbed_a_run_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    own: float | None,
    limits: dict[str, float | str],
    jobs: int | None,
    expected: dict[str, Any],
) -> None:
    moments = iter([100.0, 100.0 + seconds])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    noise = Noise(node(tmp_path, 1000, 0, 3), count_jobs=lambda: jobs)
    node(tmp_path, 1500, 100_000, 4)
    found = noise.found(own, {"governor": "powersave"}, limits)
    found["warnings"] = [text.removesuffix(" other jobs of Kochi") for text in found["warnings"]]
    assert {key: found[key] for key in expected} == expected
    assert found["throttled"] == COUNT


def test_what_the_kernel_does_not_tell_gives_no_warning(tmp_path: Path) -> None:
    found = Noise(tmp_path).found(1.0, {"governor": None}, {})
    assert (found.pop("warnings"), found.pop("load_limit")) == ([], 0.5)
    assert set(found.values()) == {None}


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
