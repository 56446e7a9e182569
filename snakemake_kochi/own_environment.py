"""The virtual environment in which this process runs, if `kochi machine setup` has made it.

It counts as used as long as a worker, a controller or a launched run lives in it: `kochi clean`
does not delete it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from snakemake_kochi.files import note_use
from snakemake_kochi.paths import EnvironmentPaths

_INTERVAL = 60.0  # seconds; what is used stays for ten minutes at least


class OwnEnvironment:
    """Notes the use of the environment of this process."""

    def __init__(self, prefix: Path | None = None) -> None:
        self._used = EnvironmentPaths(prefix or Path(sys.prefix)).used
        self._is_noted = True  # until it is known that nobody asks
        self._due = time.monotonic()

    def note_use(self) -> None:
        """Call this often; it seldom does something, and raises nothing."""
        if self._is_noted and time.monotonic() >= self._due:
            self._due = time.monotonic() + _INTERVAL
            self._is_noted = note_use(self._used)
