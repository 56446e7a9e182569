"""The directory of a worker, in which others leave files that tell it something."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from snakemake_kochi.files import KeptNames
from snakemake_kochi.paths import WorkerPaths


class OwnDirectory:
    """The names of the files there, as of the last look: one look serves all who ask for some."""

    def __init__(self, paths: WorkerPaths) -> None:
        self._kept = KeptNames(paths.directory)
        self._names: Sequence[str] = ()
        self._error: OSError | None = None

    def look(self, is_notified: bool = False) -> None:
        """Look what is there; with `is_notified`, somebody has said that there is something."""
        try:
            self._names = self._kept.names(is_notified)
        except OSError as error:
            self._error = error
        else:
            self._error = None

    def has(self, path: Path) -> bool:
        """Whether a file was there at the last look. Raises OSError if that is unknown."""
        if self._error is not None:
            raise self._error
        return path.name in self._names
