"""Which locks the machine uses, whether they work here, and whether they exclude."""

from __future__ import annotations

import contextlib
import select
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import cast

from snakemake_kochi.doctor.child import other_process
from snakemake_kochi.doctor.filesystem import examine_filesystem
from snakemake_kochi.doctor.finding import Outcome
from snakemake_kochi.doctor.reporter import Reporter
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.locks.lock import Kind, LockBusyError, advice, hold
from snakemake_kochi.locks.settings import (
    disagreement,
    find_lock_settings,
    intended_lock_settings,
    read_lock_settings,
)
from snakemake_kochi.paths import MachinePaths

_TAKES = 20
# Seconds until another process has started and tried.
CONTENTION_PATIENCE = 60.0
# Seconds after which a process that tries locks ends, whoever is still there.
_LIFETIME = 300


def examine_locks(
    reporter: Reporter, machine: MachinePaths, lock_dir: Path | None, kind: str | None, nonce: str
) -> None:
    """All that can be told of the locks without another node."""
    reporter.begin("lock settings", machine.lock_settings)
    wanted = intended_lock_settings(machine, lock_dir, kind)
    with contextlib.suppress(DamagedFileError):
        # What is in use, whatever is configured by now.
        wanted = read_lock_settings(machine) or wanted
    verdict = reporter.run(
        "lock settings", machine.lock_settings, lambda: _settings(machine, lock_dir, kind)
    )
    where = wanted.paths.directory
    if verdict == "failed" and not (wanted.lock_dir or machine.directory).is_dir():
        return
    with reporter.trial(wanted.paths.trial(nonce)) as trial:
        is_flock = wanted.kind == "flock"
        reporter.run("filesystem of locks", where, lambda: examine_filesystem(where, is_flock))
        path = trial.lock("here")
        if reporter.run("lock", where, lambda: _works(path, wanted.kind)) == "ok":
            reporter.run(
                *("lock between processes", where),
                lambda: _excludes(path, wanted.kind),
                patience=2 * CONTENTION_PATIENCE,
            )


def _settings(machine: MachinePaths, lock_dir: Path | None, kind: str | None) -> Outcome:
    wanted = intended_lock_settings(machine, lock_dir, kind)
    settled = read_lock_settings(machine)
    if settled is not None and (problem := disagreement(settled, wanted)):
        raise problem
    if lock_dir is not None and not lock_dir.is_dir():
        return Outcome("failed", f"there is no directory {lock_dir}", "Make it, for all nodes.")
    if settled is None:
        return Outcome("note", f"not settled before the first use; configured: {wanted}")
    find_lock_settings(machine)
    return Outcome("ok", f"{settled}, settled by {settled.host} at {settled.time}")


def _works(path: Path, kind: Kind) -> Outcome:
    times = []
    for _ in range(_TAKES):
        begun = time.perf_counter()
        with hold(path, kind, patience=0):
            pass
        times.append(time.perf_counter() - begun)
    return Outcome("ok", f"{kind} works; {1000 * statistics.median(times):.2g} ms to take and give")


def _excludes(path: Path, kind: Kind) -> Outcome:
    with hold(path, kind, patience=0):
        if contend(path, kind) == "got":
            return Outcome("failed", f"{kind}: two processes held it at once", advice(kind))
    if contend(path, kind) != "got":
        return Outcome(
            "failed", f"{kind}: it was not free after its holder let it go", advice(kind)
        )
    return Outcome("ok", f"{kind}: a second process was kept out until the first let it go")


def contend(path: Path, kind: Kind) -> str:
    """Have another process of this node try the lock: "got" or "busy".

    Raises KochiError when it is not supported, or when the call does not return.
    """
    with other_process(__name__, str(path), kind) as stream:
        if not select.select([stream], [], [], CONTENTION_PATIENCE)[0]:
            raise KochiError(
                f"{kind}: no answer within {CONTENTION_PATIENCE:g} seconds", advice(kind)
            )
        answer, _, message = stream.readline().strip().partition(" ")
    if answer not in ("got", "busy"):
        raise KochiError(message or "the process that tried the lock ended", advice(kind))
    return answer


def main(arguments: list[str]) -> int:
    """The other process. Others may need a moment to see that a lock is free."""
    path, kind = Path(arguments[0]), cast(Kind, arguments[1])
    signal.alarm(_LIFETIME)
    try:
        with hold(path, kind, patience=0.3):
            print("got", flush=True)
    except LockBusyError:
        print("busy", flush=True)
    except KochiError as error:
        print(f"refused {error.message}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
