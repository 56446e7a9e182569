"""Slurm's commands as a test wants them to answer, for what a real one does not do on demand."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

# Said by Slurm 22.05 and later.
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
NO_DATABASE = "Slurm accounting storage is disabled"


def says(text: str, status: int = 0) -> str:
    """The program says this, as an error if its exit status is not 0."""
    where = " >&2" if status else ""
    return f"printf '%s\\n' {shlex.quote(text)}{where}; exit {status}"


class FakeSlurm:
    """A directory that is all of PATH: a program without answers is not there."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        for tool in ("cat", "env", "sleep", "wc"):
            (directory / tool).symlink_to(str(shutil.which(tool)))
        monkeypatch.setenv("PATH", str(directory))

    def answers(self, program: str, *answers: str) -> None:
        """What a shell does at each call of the program; the last also at all later ones."""
        *first, last = answers
        calls = self.directory / f"calls-{program}"
        cases = [f"{number}) {answer} ;;" for number, answer in enumerate(first, 1)]
        lines = [f'echo "$*" >> {calls}', f"case $(wc -l < {calls}) in", *cases, f"*) {last} ;;"]
        path = self.directory / program
        path.write_text("\n".join(["#!/bin/sh", *lines, "esac", ""]))
        path.chmod(0o755)
        assert os.access(path, os.X_OK)

    def calls(self, program: str) -> list[str]:
        """The arguments of each call."""
        path = self.directory / f"calls-{program}"
        return path.read_text().splitlines() if path.exists() else []


class Sleeper:
    """A worker's script that sleeps; no worker is needed to see what Slurm says."""

    grace = 5.0

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def script(
        self, allocation: str, cores: str | None, output: Path | None = None, index: str = "0"
    ) -> str:
        return "#!/bin/bash\nexec sleep 300\n"

    def log(self, allocation: str) -> Path:
        return self._directory / f"{allocation}.log"
