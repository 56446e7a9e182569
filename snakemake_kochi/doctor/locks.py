"""Checks of the locks of a machine.

They examine which locks it uses, whether they work, and whether they exclude.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from snakemake_kochi.doctor.checks import Outcome
from snakemake_kochi.locks.lock import Kind, advice, hold
from snakemake_kochi.locks.probe import contender
from snakemake_kochi.locks.settings import (
    LockSettings,
    disagreement,
    find_lock_settings,
    read_lock_settings,
)

_TAKES = 20


def examine_settings(wanted: LockSettings) -> Outcome:
    settled = read_lock_settings(wanted.machine)
    if settled is not None and (problem := disagreement(settled, wanted)):
        raise problem
    lock_dir = wanted.lock_dir
    if lock_dir is not None and not lock_dir.is_dir():
        return Outcome("failed", f"there is no directory {lock_dir}", "Make it, for all nodes.")
    if settled is None:
        return Outcome("note", f"not settled before the first use; configured: {wanted}")
    find_lock_settings(wanted.machine)
    return Outcome("ok", f"{settled}, settled by {settled.host} at {settled.time}")


def examine_lock(path: Path, kind: Kind) -> Outcome:
    times = []
    for _ in range(_TAKES):
        begun = time.perf_counter()
        with hold(path, kind, patience=0):
            pass
        times.append(time.perf_counter() - begun)
    return Outcome("ok", f"{kind} works; {1000 * statistics.median(times):.2g} ms to take and give")


def examine_exclusion(path: Path, kind: Kind) -> Outcome:
    with contender(path, kind) as contend:
        with hold(path, kind, patience=0):
            is_admitted = contend()
        is_free = contend()
    if is_admitted:
        return Outcome("failed", f"{kind}: two processes held it at once", advice(kind))
    if not is_free:
        said = f"{kind}: it was not free after its holder let it go"
        return Outcome("failed", said, advice(kind))
    return Outcome("ok", f"{kind}: a second process was kept out until the first let it go")
