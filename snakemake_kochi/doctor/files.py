"""Whether a directory has what the queue relies on, or can do without: rename, link, FIFO."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from snakemake_kochi.doctor.child import other_process
from snakemake_kochi.doctor.finding import Outcome
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically, write_new
from snakemake_kochi.paths import TrialPaths
from snakemake_kochi.queue.wakeup import WakeUp, notify

_VERSION = 1
_PADDING = "x" * 20_000  # more than a page, so that half a file can be seen
_WRITING = 0.3  # seconds
_READING = 60.0  # seconds at most
_LINKERS, _LINKS = 4, 25


@dataclass(frozen=True)
class Sightings:
    """What a reader saw of a file that was replaced again and again.

    `missing`, `partial`: how often it was not there, or not whole; `stale`: how often the
    filesystem had lost hold of it (ESTALE and the like); `lag`: seconds, the longest from a write
    to when it was seen, which means something only where reader and writer have one clock; `ended`:
    whether the last version was seen.
    """

    reads: int = 0
    versions: int = 0
    missing: int = 0
    partial: int = 0
    stale: int = 0
    lag: float = 0.0
    ended: bool = False


def write_version(document: Path, number: int, last: bool = False) -> None:
    content = {"number": number, "time": time.time(), "last": last, "padding": _PADDING}
    write_atomically(document, to_json({"version": _VERSION, **content}))


def write_versions(document: Path, seconds: float = _WRITING) -> int:
    """Replace it for a while; return how often."""
    number, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        number += 1
        write_version(document, number)
    write_version(document, number + 1, last=True)
    return number + 1


def watch(document: Path, patience: float = _READING) -> Sightings:
    """Read it until its last version comes, at most for `patience` seconds."""
    seen = Sightings()
    latest, until = -1, time.monotonic() + patience
    while time.monotonic() < until and not seen.ended:
        seen = replace(seen, reads=seen.reads + 1)
        try:
            found = read_json(document, _VERSION)
        except FileNotFoundError:
            seen = replace(seen, missing=seen.missing + 1)
            continue
        except DamagedFileError:
            seen = replace(seen, partial=seen.partial + 1)
            continue
        except OSError:
            seen = replace(seen, stale=seen.stale + 1)
            continue
        if found["number"] != latest:
            latest = found["number"]
            # The first was there before.
            lag = time.time() - found["time"] if seen.versions else 0.0
            seen = replace(seen, versions=seen.versions + 1, lag=max(seen.lag, lag))
        seen = replace(seen, ended=found["last"])
    return seen


def examine_rename(trial: TrialPaths) -> Outcome:
    write_version(trial.document, 0)
    with other_process(__name__, str(trial.document)) as stream:
        if stream.readline().strip() != "reading":
            raise KochiError("the process that was to read ended")
        written = write_versions(trial.document)
        seen = Sightings(**json.loads(stream.readline() or "{}"))
    outcome = judge_sightings(seen, written, "another process")
    lag = f"; seen after {1000 * seen.lag:.0f} ms at the latest"
    if outcome.verdict != "ok":
        return outcome
    return Outcome("ok", outcome.measured + lag)


def judge_sightings(seen: Sightings, written: int, whose: str) -> Outcome:
    said = f"replaced {written} times, read {seen.reads} times by {whose}"
    bad = [
        f"{count} times {what}"
        for count, what in ((seen.missing, "missing"), (seen.partial, "only in part"))
        if count
    ]
    if bad:
        return Outcome(
            "failed",
            f"{said}: {' and '.join(bad)}",
            "Queues cannot be kept on this filesystem: name another kochi_root.",
        )
    if not seen.ended:
        return Outcome(
            "failed",
            f"{said}, but the last version was not seen within {_READING:g} seconds",
            "Files of other processes must become visible: name another kochi_root.",
        )
    if seen.stale:
        return Outcome("warning", f"{said}: {seen.stale} times the filesystem could not read it")
    return Outcome("ok", f"{said}: always there and whole")


def examine_link(trial: TrialPaths) -> Outcome:
    """Several try to make the same names at once; results are published that way."""
    won = [0] * _LINKERS
    errors: list[OSError] = []
    start = threading.Barrier(_LINKERS)

    sources = [trial.link(f"source-{linker}") for linker in range(_LINKERS)]
    for source in sources:
        write_new(source, b"")

    def link(linker: int) -> None:
        start.wait()
        for number in range(_LINKS):
            try:
                os.link(sources[linker], trial.link(str(number)))
                won[linker] += 1
            except FileExistsError:
                continue
            except OSError as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=link, args=(linker,)) for linker in range(_LINKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    advice = "Queues cannot be kept on this filesystem: name another kochi_root."
    if errors:
        return Outcome("failed", f"hard links cannot be made: {errors[0].strerror}", advice)
    said = f"{_LINKERS} threads made {_LINKS} names: {sum(won)} times one succeeded"
    if sum(won) != _LINKS:
        return Outcome("failed", said, advice)
    return Outcome("ok", f"{said}; {_between_directories(sources[0], trial)}")


def _between_directories(source: Path, trial: TrialPaths) -> str:
    make_directory(trial.other_directory)
    try:
        os.link(source, trial.other_directory / source.name)
    except OSError as error:
        return f"none between directories ({error.strerror}): results are copied"
    return "also between directories"


def examine_wakeup(trial: TrialPaths) -> Outcome:
    """What wakes workers."""
    wakeup = WakeUp(trial.wakeup)
    try:
        if wakeup.is_silent:
            said = "no FIFOs here: workers and controllers look ten times a second instead"
            return Outcome("note", said)
        if notify(trial.wakeup) and wakeup.wait(0):
            return Outcome("ok", "a FIFO wakes its reader")
    finally:
        wakeup.close()
    return Outcome("failed", "a FIFO did not wake its reader", "Name another kochi_root.")


def examine_refusals(trial: TrialPaths) -> Outcome:
    """What a queue can do without, where a filesystem refuses it."""
    make_directory(trial.other_directory)
    calls = {
        "a rename of a directory": partial(os.rename, trial.other_directory, trial.link("moved")),
        "a symbolic link": partial(os.symlink, trial.document.name, trial.link("symbolic")),
    }
    refused = []
    for what, call in calls.items():
        try:
            call()
        except OSError as error:
            refused.append(f"{what} ({error.strerror})")
    if refused:
        return Outcome(
            "note", f"refused: {', '.join(refused)}; what kochi does without it is slower"
        )
    return Outcome("ok", "directories can be renamed, symbolic links made")


def sightings_from(data: dict[str, Any]) -> Sightings:
    return Sightings(**{key: data[key] for key in Sightings.__dataclass_fields__})


def main(arguments: list[str]) -> int:
    """The process that reads."""
    signal.alarm(int(2 * _READING))
    print("reading", flush=True)
    print(json.dumps(asdict(watch(Path(arguments[0])))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
