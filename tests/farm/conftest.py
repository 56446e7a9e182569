"""A directory with nothing in it, in which people type `kochi farm`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import Outcome, start, wait_until

FARM = (sys.executable, "-P", "-m", "snakemake_kochi.cli", "farm")


@dataclass
class Place:
    """The directory; `done` has a line for each task that has run to its end there."""

    directory: Path
    started: list[subprocess.Popen[Any]] = field(default_factory=list)

    def write(self, *lines: str, name: str = "tasks") -> Path:
        path = self.directory / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def farm(
        self,
        *words: str,
        given: bytes = b"",
        before: Callable[[], None] | None = None,
        **variables: str,
    ) -> Outcome:
        """`before`: called in the process of the farm, before it begins."""
        ran = subprocess.run(
            [*FARM, *words],
            cwd=self.directory,
            input=given,
            capture_output=True,
            env={**os.environ, **variables},
            timeout=170,
            preexec_fn=before,
        )
        err = ran.stderr.decode(errors="replace")
        print(ran.stdout.decode(errors="replace"), err, sep="\n")
        assert "Traceback" not in err
        return Outcome(ran.returncode, ran.stdout.decode(errors="replace"), err)

    def begin(self, *words: str) -> subprocess.Popen[Any]:
        process = start(*FARM, *words, cwd=self.directory, start_new_session=True)
        self.started.append(process)
        return process

    def numbers(self, *words: str) -> dict[str, Any]:
        found = json.loads(self.farm(*(words or ("tasks",)), "--status", "--json").out)
        assert isinstance(found, dict)
        return found

    @property
    def done(self) -> list[str]:
        path = self.directory / "done"
        return path.read_text().split() if path.exists() else []

    def wait_for(self, *words: str) -> None:
        wait_until(lambda: set(words) <= set(self.done), f"{words} in {self.done}")

    @property
    def ends(self) -> list[list[str]]:
        text = (self.directory / "tasks.farm" / "ended.tsv").read_text()
        lines = [line.split("\t") for line in text.splitlines()]
        return [fields for fields in lines if fields[2] != "again"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    for process in found.started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


Farm = Callable[..., Outcome]
