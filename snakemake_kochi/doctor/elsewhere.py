"""The same between two other nodes: the job on one of them examines that with the other."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from snakemake_kochi.doctor.between_nodes import END_PATIENCE, START_PATIENCE, Pair
from snakemake_kochi.doctor.messages import PATIENCE
from snakemake_kochi.doctor.reporter import Reporter
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Queue, Ticket, cancel, find_job

_LOOK = 0.05  # seconds


def examine_elsewhere(
    reporter: Reporter, machine: MachinePaths, pair: Pair, queue: str, nonce: str
) -> None:
    """What the worker of `queue` finds out with that of the pair. Raises KochiError if its job
    fails."""
    reporter.begin(pair.what, None, patience=START_PATIENCE + 3 * PATIENCE)
    given = {
        "nonce": nonce,
        "name": machine.name,
        "machine": str(machine.directory),
        "pair": asdict(pair),
    }
    module = "snakemake_kochi.doctor.measure"
    command = (sys.executable, "-P", "-m", module, "between nodes", json.dumps(given))
    ticket = Ticket(name="doctor", command=command, directory="/", controller=pair.controller)
    (submitted,) = Queue(machine, queue).submit([ticket])
    try:
        for event in _events(machine, submitted.job):
            reporter.relay(event)
    finally:
        cancel(machine, submitted.job)
        deadline = time.monotonic() + END_PATIENCE
        while not _has_ended(machine, submitted.job) and time.monotonic() < deadline:
            time.sleep(_LOOK)


def _has_ended(machine: MachinePaths, job: int) -> bool:
    return find_job(machine, job).state == "ended"


def _events(machine: MachinePaths, job: int) -> Iterator[dict[str, Any]]:
    """What the job's reporter tells, until it has ended."""
    log = machine.job(job).log
    position, other = 0, ""
    has_ended = False
    while not has_ended:
        # What was told between the last look and the end is read in one more round.
        has_ended = _has_ended(machine, job)
        told = b""
        with contextlib.suppress(FileNotFoundError), log.open("rb") as stream:
            stream.seek(position)
            told = stream.read()
        lines, _, _ = told.rpartition(b"\n")
        position += len(lines) + bool(lines)
        for line in lines.decode(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                other = line
                continue
            if isinstance(event, dict) and "event" in event:
                yield event
        time.sleep(0.0 if has_ended else _LOOK)
    result = find_job(machine, job).result
    if result is None or not result.ok:
        why = other or ("" if result is None else result.detail or result.reason)
        raise KochiError(
            f"the job that was to examine it ended too early: {why}",
            f"See its log: kochi show log job {job}",
        )
