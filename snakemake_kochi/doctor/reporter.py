"""How a process that measures tells the one that waits for it: a line of JSON for each event."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from snakemake_kochi.doctor.finding import Finding, Outcome, Verdict
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import TrialPaths

_REMOVAL_PATIENCE = 5.0  # seconds


class Reporter:
    """Events: "begin" of a check, which may need more `patience` than usual (seconds), "found",
    "making" a directory that is to be removed whatever happens, and "remark" for people."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._check, self._directory = "", ""

    def _tell(self, event: str, **content: Any) -> None:
        # At once. Nobody there to read it ends the process, which cleans up.
        print(json.dumps({"event": event, **content}), file=self._stream, flush=True)

    def begin(self, check: str, directory: Path | None, patience: float | None = None) -> None:
        self._check, self._directory = check, "" if directory is None else str(directory)
        self._tell("begin", check=check, directory=self._directory, patience=patience)

    def found(self, outcome: Outcome) -> Verdict:
        finding = Finding(self._check, self._directory, outcome)
        self._tell("found", **finding.to_dict())
        return outcome.verdict

    def failed(self, error: KochiError | OSError) -> Verdict:
        if isinstance(error, KochiError):
            return self.found(Outcome("failed", error.message, error.hint or ""))
        file = f"{error.filename}: " if error.filename else ""
        return self.found(Outcome("failed", f"{file}{error.strerror or error}"))

    def run(
        self,
        check: str,
        directory: Path | None,
        measure: Callable[[], Outcome],
        patience: float | None = None,
    ) -> Verdict:
        """Do one check; an error is its outcome, too."""
        self.begin(check, directory, patience)
        try:
            outcome = measure()
        except (KochiError, OSError) as error:
            return self.failed(error)
        return self.found(outcome)

    def relay(self, event: Mapping[str, Any]) -> None:
        """Tell what the reporter of another process has told."""
        print(json.dumps(event), file=self._stream, flush=True)

    def remark(self, text: str) -> None:
        self._tell("remark", text=text)

    @contextlib.contextmanager
    def trial(self, trial: TrialPaths) -> Iterator[TrialPaths]:
        """Have the directory in which things are tried; it goes again, with what else had to be
        made for it."""
        self.begin("directory", trial.directory.parent)
        made = [path for path in (trial.directory, *trial.directory.parents) if not path.is_dir()]
        made.reverse()
        for path in made:
            self._tell("making", path=str(path))
        try:
            make_directory(trial.directory)
            yield trial
        finally:
            remove(made)


def remove(made: list[Path]) -> list[Path]:
    """Remove a trial's directory, the last of `made`, with its content, and those that were made
    around it if nobody has used them since. Returns what is left of the trial."""
    if not made:
        return []
    *around, directory = made
    deadline = time.monotonic() + _REMOVAL_PATIENCE
    # NFS keeps a file that is open on another node under another name, for as long.
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.01)
    for path in reversed(around):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    return [directory] if directory.exists() else []
