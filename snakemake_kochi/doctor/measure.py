"""`python -m snakemake_kochi.doctor.measure PART ARGUMENTS`: a process that may hang.

It tells what it finds as lines of JSON; see `Reporter`.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from snakemake_kochi.doctor.between_nodes import Pair, examine_between_nodes
from snakemake_kochi.doctor.elsewhere import examine_elsewhere
from snakemake_kochi.doctor.files import (
    examine_link,
    examine_refusals,
    examine_rename,
    examine_wakeup,
)
from snakemake_kochi.doctor.filesystem import examine_clock, examine_filesystem, examine_space
from snakemake_kochi.doctor.locks import examine_locks
from snakemake_kochi.doctor.node import examine_node
from snakemake_kochi.doctor.reporter import Reporter, remove
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import MachinePaths, TrialPaths

# Seconds; for that another process has to start.
_RENAME_PATIENCE = 90.0
# What Snakemake itself keeps in a working directory: no snapshot of the sources has it.
_PROJECT_PLACE = ".snakemake"
_ROOT_OF_ALL = (
    "kochi_root must be on a filesystem that all nodes see. To test whether this one is, type: "
    "kochi doctor --allocations"
)
_PROJECT_OF_ALL = "The project must be on a filesystem that all nodes see."


def main(arguments: list[str]) -> int:
    part, given = arguments[0], json.loads(arguments[1])
    # Told to end, it must still remove what it made.
    signal.signal(signal.SIGTERM, _leave)
    reporter = Reporter(sys.stdout)
    try:
        _measure(part, given, reporter)
    except BrokenPipeError:
        return 1  # nobody waits for us any more
    except (KochiError, OSError) as error:
        reporter.failed(error)
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _measure(part: str, given: Mapping[str, Any], reporter: Reporter) -> None:
    if part == "remove":
        reporter.begin("remove", None)
        left = remove([Path(path) for path in given["made"]])
        print(json.dumps({"left": [str(path) for path in left]}), flush=True)
        return
    if part == "node":
        examine_node(reporter)
        return
    nonce = str(given["nonce"])
    if part == "project":
        project = Path(given["project"])
        _examine_project(reporter, project, nonce, bool(given["of_all"]))
        return
    machine = MachinePaths(given["name"], Path(given["machine"]))
    if part == "machine":
        _examine_machine(reporter, machine, nonce, bool(given["of_all"]))
    elif part == "locks":
        lock_dir = given["lock_dir"]
        where = None if lock_dir is None else Path(lock_dir)
        examine_locks(reporter, machine, where, given["lock_kind"], nonce)
    elif part == "between nodes":
        examine_between_nodes(reporter, machine, Pair(**given["pair"]), nonce)
    elif part == "elsewhere":
        examine_elsewhere(reporter, machine, Pair(**given["pair"]), given["queue"], nonce)


def _examine_machine(reporter: Reporter, machine: MachinePaths, nonce: str, of_all: bool) -> None:
    where = machine.directory
    with reporter.trial(machine.trial(nonce)) as trial:
        _examine_directory(reporter, where, trial, _ROOT_OF_ALL if of_all else "")
        reporter.run("link", where, lambda: examine_link(trial))
        reporter.run("wake-up", where, lambda: examine_wakeup(trial))
        reporter.run("directories", where, lambda: examine_refusals(trial))


def _examine_project(reporter: Reporter, project: Path, nonce: str, of_all: bool) -> None:
    place = TrialPaths(project / _PROJECT_PLACE / f"kochi-doctor-{nonce}")
    with reporter.trial(place) as trial:
        _examine_directory(reporter, project, trial, _PROJECT_OF_ALL if of_all else "")


def _examine_directory(reporter: Reporter, where: Path, trial: TrialPaths, of_all: str) -> None:
    reporter.run("filesystem", where, lambda: examine_filesystem(trial.directory, of_all=of_all))
    reporter.run("space", where, lambda: examine_space(trial.directory))
    reporter.run("clock", where, lambda: examine_clock(trial))
    reporter.run("rename", where, lambda: examine_rename(trial), patience=_RENAME_PATIENCE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
