"""How far a launched run is, as its log says."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from snakemake_kochi.detached.launches import Found, read_log
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.logger.progress import Progress

# Snakemake's own lines. In what it prints by our logger, the failures are beside the steps.
_TIME = re.compile(r"\[(\w{3} \w{3} [ \d]\d [\d:]{8} \d{4})\]$")
_TOTAL = re.compile(r"total +(\d+)$")
_BEGUN = re.compile(r"(?:local)?(?:rule|checkpoint) \S+:$|group job ")
_DONE = re.compile(r"(\d+) of (\d+) steps \(\S+%\) done(?:, (\d+) failed)?")
_ERROR = re.compile(r"Error in (?:rule|group) ")
_JOB = re.compile(r" +jobid: (\S+)$")
_RESTARTED = re.compile(r"Trying to restart job (\S+)\.")


@dataclass(frozen=True)
class Steps:
    """How many of a run's steps are done and have failed; `left`: how many seconds the others are
    likely to take, None where that cannot be told."""

    done: int
    total: int
    failed: int
    left: float | None = None


def steps_of(found: Found) -> Steps | None:
    """None where nothing is known yet."""
    with contextlib.suppress(DamagedFileError):
        for file in filter(None, (read_log(found.paths), found.paths.output)):
            with (
                contextlib.suppress(OSError),
                file.open(encoding="utf-8", errors="replace") as lines,
            ):
                steps = read_steps(lines, time.time(), not found.is_over)
                if steps is not None:
                    return steps
    return None


def read_steps(lines: Iterable[str], now: float, goes_on: bool) -> Steps | None:
    """From the lines of a log, and the time `now`, in seconds."""
    moment = 0.0
    progress = Progress(lambda: moment)
    done, total, counted = 0, None, 0
    failed: set[str] = set()
    has_begun, is_error = False, False
    for raw in lines:
        line = raw.rstrip("\n")
        if match := _TIME.match(line):
            moment = datetime.strptime(match[1], "%a %b %d %H:%M:%S %Y").timestamp()
        elif match := _DONE.match(line):
            done, total, counted = int(match[1]), int(match[2]), int(match[3] or 0)
            progress.note(done, total)
        elif match := _RESTARTED.match(line):
            failed.discard(match[1])
        elif total is None and (match := _TOTAL.match(line)):
            total = int(match[1])
        elif not has_begun and _BEGUN.match(line):
            has_begun = True
            progress.begin()
        elif is_error and (match := _JOB.match(line)):
            failed.add(match[1])
        if not line.startswith(" "):
            is_error = bool(_ERROR.match(line))
    if total is None:
        return None
    many = max(len(failed), counted)
    is_timed = moment > 0
    moment = now
    return Steps(done, total, many, progress.left(many) if goes_on and is_timed else None)
