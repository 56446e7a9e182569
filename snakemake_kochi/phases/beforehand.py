"""What a spawner of phases knows before it forks, so that its copies need not find it out.

Only what many copies need counts: a fork makes the spawner pay for each page of memory that it
changes, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from snakemake_kochi.phases.batch_freeze import batch_freeze_file, remember
from snakemake_kochi.phases.node import remember_hardware

FREEZE = "KOCHI_FREEZE"
# Seconds for which files that are written once, and the hardware, are taken to be as they were.
_LOOK_INTERVAL = 1.0
_BATCH = "--batch="

_State = tuple[int, int, int]


class Beforehand:
    """Reads what runs of a batch have in common."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._asked: tuple[str, str, str] | None = None
        self._state: _State | None = None
        self._looked = 0.0

    def read(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Read it for a phase with these arguments in this environment.

        Nothing is read for the first run of a batch, and nothing is kept that cannot be read: the
        process of the phase then reads it, and says in its log what is wrong.
        """
        now = time.monotonic()
        asked = _asked(words, environment)
        if asked == self._asked and now < self._looked + _LOOK_INTERVAL:
            return
        self._asked, self._looked = asked, now
        remember_hardware()
        if asked is None:
            return
        file = batch_freeze_file(Path(asked[0]), *asked[1:])
        state = _state_of(file)
        if (file, state) != (self._file, self._state):
            is_known = remember(Path(asked[0]), *asked[1:])
            self._file, self._state = (file, state) if is_known else (None, None)


def _asked(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str, str] | None:
    """The freeze, the experiment and the batch of a run; None for anything else."""
    batch = [word.removeprefix(_BATCH) for word in words if word.startswith(_BATCH)]
    if words[:1] != ["run"] or len(words) < 2 or len(batch) != 1 or FREEZE not in environment:
        return None
    return environment[FREEZE], words[1], batch[0]


def _state_of(file: Path) -> _State | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
