"""A history that failed can be played again."""

from __future__ import annotations

import os
import subprocess
import sys

from support import PYTHON_PATH, REPOSITORY

PLAY = """
import sys
from simulator.histories import play
for seed in sorted(map(int, sys.argv[2:]), reverse=sys.argv[1] == "backwards"):
    told = play(seed, is_traced=True)
    sys.stdout.write("".join(f"{seed} {line}\\n" for line in [*told.trace, *told.problems]))
"""
SEEDS = range(12)


def traces(order: str, hashes: int) -> dict[str, list[str]]:
    """Every call of these histories, by seed, as a process of its own plays them."""
    process = subprocess.run(
        [sys.executable, "-c", PLAY, order, *map(str, SEEDS)],
        env=os.environ
        | {
            "PYTHONPATH": f"{REPOSITORY / 'tests'}:{PYTHON_PATH}",
            "PYTHONHASHSEED": str(hashes),
        },
        capture_output=True,
        check=True,
        text=True,
    )
    found: dict[str, list[str]] = {}
    for line in process.stdout.splitlines():
        found.setdefault(line.partition(" ")[0], []).append(line)
    return found


def test_a_history_is_the_same_in_every_process() -> None:
    first, second = traces("forwards", 1), traces("backwards", 2)
    assert len(first) == len(SEEDS)
    for seed, lines in first.items():
        assert lines == second[seed], f"seed {seed}"
