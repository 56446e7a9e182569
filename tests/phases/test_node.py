"""What a record says of its node, read from files as kernels have them."""

from __future__ import annotations

import os
from pathlib import Path

from support import write

from snakemake_kochi.phases.node import hardware, system

CPUS = "sys/devices/system/cpu"


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


def test_sockets_cores_and_siblings_are_counted(tmp_path: Path) -> None:
    node = make_node(tmp_path, ["0,4", "1,5", "2,6", "3,7"], ["0-1,4-5", "2-3,6-7"])
    text = "processor\t: 0\nmodel name\t: Fast  CPU @ 2GHz\n\nprocessor\t: 1\nmodel name\t: B\n"
    write(node / "proc/cpuinfo", text)
    write(node / "proc/meminfo", "MemFree: 1 kB\nMemTotal:       16318036 kB\n")
    found = hardware(node)
    assert (found["sockets"], found["cores"], found["threads"]) == (2, 4, 8)
    assert (found["cpu_model"], found["memory_mb"]) == ("Fast CPU @ 2GHz", 15935)
    assert found["architecture"] == os.uname().machine


def test_an_older_kernel_and_cores_of_two_kinds_are_counted(tmp_path: Path) -> None:
    found = hardware(make_node(tmp_path, ["0-1", "2-3", "4", "5"], ["0-5"], older=True))
    assert (found["sockets"], found["cores"], found["threads"]) == (1, 4, 6)


def test_what_cannot_be_read_is_null(tmp_path: Path) -> None:
    found = hardware(tmp_path)
    assert found.pop("architecture")
    assert set(found.values()) == {None}
    seen = system(None, tmp_path)
    assert seen.pop("kernel") == os.uname().release
    assert set(seen.values()) == {None}
    # Not numbers, and a topology that does not agree with the CPUs that are online.
    node = make_node(tmp_path / "odd", ["0-1"], ["0-1"])
    write(node / CPUS / "online", "0-3\n")
    write(node / "proc/meminfo", "MemTotal: many\n")
    found = hardware(node)
    assert (found["sockets"], found["cores"], found["threads"]) == (None, None, 4)
    assert found["memory_mb"] is None
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
