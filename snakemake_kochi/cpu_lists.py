"""Lists of CPUs as the kernel and taskset(1) write them: 0-3,8."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress


def cpus_in(text: str | None) -> list[int]:
    """The numbers in a list; none if it is no list."""
    numbers: list[int] = []
    with suppress(ValueError):
        for part in (text or "").split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def format_cpus(cpus: Iterable[int]) -> str:
    """The list of these CPUs."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in cpu_ranges(cpus)
    )


def cpu_ranges(cpus: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last CPU of each range, in order."""
    ranges: list[tuple[int, int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1] = (ranges[-1][0], cpu)
        else:
            ranges.append((cpu, cpu))
    return ranges
