"""What does `kochi clean` leave after many jobs, and how long does it take?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.measure import Row, Size
from bench.snakemake_runs import SHELL, Runner, kochi_executor

_LONG_AGO = 40 * 86400.0  # seconds
_CLEAN = ("-P", "-m", "snakemake_kochi.cli", "clean", "--json", "-m", "local")


def measure(directory: Path, size: Size) -> list[Row]:
    """A run of one-line jobs, whose files are then given a time 40 days ago; the inodes and bytes
    below KOCHI_ROOT before and after a clean-up with the default ages, and the time of the command.
    Once more, with the files of a first run still there, so that the rest is no single run's."""
    count = size.number(10_000, 20)
    runner = Runner(directory)
    root = directory / "root"
    rows = []
    for number in ("one run", "a second run"):
        runner.time(SHELL, count, kochi_executor(size.slots))
        _make_old(root)
        inodes, taken = _measure(root)
        dry = _seconds(runner, directory, "--dry-run")
        seconds = _seconds(runner, directory, "-y")
        left, left_taken = _measure(root)
        rows += [
            Row(f"inodes after {number} of {count:,} jobs", [inodes], ""),
            Row("their disk space", [taken / 2**20], "MiB"),
            Row("`kochi clean --dry-run`", [dry], "s"),
            Row("`kochi clean`", [seconds], "s"),
            Row("inodes left", [left], "", limit=300.0),
            Row("disk space left", [left_taken / 2**20], "MiB"),
        ]
    return rows


def _make_old(root: Path) -> None:
    moment = time.time() - _LONG_AGO
    for parent, _, names in os.walk(root):
        for each in (parent, *(f"{parent}/{name}" for name in names)):
            os.utime(each, (moment, moment), follow_symlinks=False)


def _measure(root: Path) -> tuple[int, int]:
    found = [Path(root).lstat()]
    for parent, directories, names in os.walk(root):
        found += [os.lstat(f"{parent}/{name}") for name in (*directories, *names)]
    inodes = {(each.st_dev, each.st_ino): each.st_blocks * 512 for each in found}
    return len(inodes), sum(inodes.values())


def _seconds(runner: Runner, directory: Path, *options: str) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *_CLEAN, *options],
        cwd=directory,
        env=runner.environment(),
        check=True,
        stdout=subprocess.PIPE,
    )
    seconds = time.perf_counter() - began
    if not json.loads(done.stdout)["total"]["inodes"]:
        raise RuntimeError("nothing was deleted")
    return seconds
