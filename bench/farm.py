"""A file of commands: `kochi farm`, PyTaskFarmer and xargs, in turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import psutil

from bench.measure import Row, Size, alternate

KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli", "farm")
# To have it: pip install pytaskfarmer
PYTASKFARMER = "pytaskfarmer.py"
_PAUSE = 0.2  # seconds between two looks at the memory


def measure(directory: Path, size: Size) -> list[Row]:
    """1,000 empty tasks with each tool; then a hundred times as many, and what they leave."""
    slots, place = size.slots, _Place(directory)
    numbers = size.numbers((1000, 100_000), (10, 20))
    number, many = numbers[0], numbers[-1]
    ours = partial(place.time, number, lambda file: [*KOCHI, file, "-j", f"{slots}"])
    tools = [ours, partial(place.time, number, lambda file: _xargs(file, slots))]
    names = ["kochi farm", f"xargs -P{slots}"]
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    if program := shutil.which(PYTASKFARMER, path=path):
        command = [sys.executable, program, "--proc", f"{slots}"]
        tools.append(partial(place.time, number, lambda file: [*command, file]))
        names.append("PyTaskFarmer")
    values, ratios = alternate(size.runs(5), *tools)
    what = f"{number:,} `true`, {slots} at a time"
    rows = [
        Row(f"{what}: {name}", own, "s", ratio)
        for name, own, ratio in zip(names, values, ratios, strict=True)
    ]
    if len(tools) == 3:
        ratio = 1 / ratios[2]
        rows.append(Row("the first row, compared with PyTaskFarmer", values[0], "s", ratio, 0.5))
    one = place.time(1, lambda file: [*KOCHI, file, "-j", f"{slots}"])
    rows.append(Row("one `true`: kochi farm", [one], "s"))
    return rows + _many(place, many, slots, min(values[0]) / number)


def _many(place: _Place, many: int, slots: int, per_task: float) -> list[Row]:
    before = place.inodes
    seconds = place.time(many, lambda file: [*KOCHI, file, "-j", f"{slots}"])
    left, what = place.inodes - before, f"{many:,} `true`"
    began = time.perf_counter()
    subprocess.run(
        [*KOCHI, place.last, "--status"],
        cwd=place.directory,
        env=place.environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    status = time.perf_counter() - began
    return [
        Row(f"{what}: per task", [1000 * seconds / many], "ms", seconds / many / per_task, 1.3),
        Row(f"{what}: memory of the farm", [place.most_memory], "MiB"),
        Row(f"{what}: files left", [left], "", limit=1000),
        Row(f"{what}: --status", [status], "s", limit=0.5),
    ]


def _xargs(file: str, slots: int) -> Sequence[str]:
    return ["xargs", "-a", file, "-d", "\n", f"-P{slots}", "-n1", "bash", "-c"]


class _Place:
    """A directory for lists, with a HOME of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "HOME": str(directory), "KOCHI_ROOT": f"{directory}/root"}
        self._numbers = count()
        self.last = ""
        self.most_memory = 0.0  # MiB, of the last command

    @property
    def inodes(self) -> int:
        return sum(1 for _ in self.directory.rglob("*"))

    def time(self, tasks: int, command: Callable[[str], Sequence[str]]) -> float:
        """The seconds for a new list."""
        self.last = f"tasks{next(self._numbers)}"
        (self.directory / self.last).write_text("true\n" * tasks)
        self.most_memory = 0.0
        began = time.perf_counter()
        process = subprocess.Popen(
            command(self.last),
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                process.wait(_PAUSE)
            except subprocess.TimeoutExpired:
                self.most_memory = max(self.most_memory, watched.memory_info().rss / 2**20)
        seconds = time.perf_counter() - began
        assert process.returncode == 0, command(self.last)
        return seconds
