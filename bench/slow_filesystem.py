"""A filesystem whose metadata operations take a while, as on a cluster, and are counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import REPOSITORY

# The roles of processes, each with what its words have: the first one that fits counts.
ROLES = (
    ("supervisor", "/worker/supervisor.py "),
    ("worker", "snakemake_kochi.worker "),
    ("job's Snakemake", " --mode "),
    ("Snakemake", "snakemake "),
    ("benchmark", " -m bench "),
)


@dataclass(frozen=True)
class Operations:
    """How often processes of a `role` (one of ROLES, or "others") did an `operation`, as lookup or
    rename, in an `area`: the first name of a path in the filesystem."""

    area: str
    role: str
    operation: str
    count: int


class SlowFilesystem:
    """Shows `backing` at `mountpoint`, as long as it is entered.

    Each operation on metadata (not reading and writing) takes `delay` seconds longer, also when
    many processes do some at a time. Names and attributes are kept for `cache_seconds`, and at
    least for the call that directly follows; names of directories, which every path needs, for half
    a minute. Several mounts of one `backing` are like nodes: flock(2) excludes between them, FIFOs
    connect only processes of one of them, and what one of them keeps may be out of date.

    Within one mount the kernel makes or removes one name of a directory at a time, as with other
    network filesystems, and waits for the answer meanwhile.
    """

    def __init__(
        self, backing: Path, mountpoint: Path, delay: float = 0.0, cache_seconds: float = 0.0
    ) -> None:
        self.path = mountpoint
        self._backing = backing
        self._options = (str(delay), str(cache_seconds))

    def __enter__(self) -> SlowFilesystem:
        for directory in (self._backing, self.path):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        words = [self._backing, self.path, *self._options, json.dumps(ROLES)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.metadata_server", *map(str, words)],
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._answer() != "mounted\n":
            self.__exit__()
            raise RuntimeError(f"FUSE cannot be mounted at {self.path}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it

    def set_delay(self, seconds: float) -> None:
        self._ask(str(seconds))

    def count(self) -> list[Operations]:
        """The operations since the last call."""
        return [Operations(*each) for each in json.loads(self._ask(""))]

    def _ask(self, question: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def total(operations: Sequence[Operations]) -> int:
    return sum(each.count for each in operations)
