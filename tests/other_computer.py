"""Another computer that is a directory here: a home and a KOCHI_ROOT of its own, without ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import IO

from snakemake_kochi.location import find_location
from snakemake_kochi.remote.project import Sent, send_project
from snakemake_kochi.remote.script import Script

MACHINE = "machines:\n  spica:\n    login_host: nowhere.example\n"
_COUNTING = """#!/bin/sh
if [ "$1" = receive-pack ]; then tee -a '{traffic}' | {git} "$@"; else exec {git} "$@"; fi
"""
_FETCH = """
import subprocess, sys
from pathlib import Path
from snakemake_kochi.phases.freeze import take_freeze
from snakemake_kochi.phases.sources import fetch
frozen = take_freeze(Path.cwd(), "spica")
(recipe,) = (each for each in frozen.all_recipes if str(each) == sys.argv[1])
fetch(recipe, frozen.sources[str(recipe)], frozen.paths.store, Path.cwd(), Path("../clone"))
subprocess.run(["git", "-C", "../clone", *sys.argv[2:]], check=True)
subprocess.run(["rm", "-rf", "../clone"], check=True)
"""


@dataclass(frozen=True)
class OtherComputer:
    """Has the methods of a `Connection` that move a project."""

    home: Path

    python = (sys.executable, "-P")

    @property
    def root(self) -> Path:
        return self.home / "root"

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.home), "KOCHI_ROOT": str(self.root), "KOCHI_MACHINE": "spica"}
        return {**os.environ, **own}

    def run(
        self, script: Script, input: bytes | IO[bytes] = b"", what: str | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        assert isinstance(input, bytes)
        done = subprocess.run(
            ["sh", "-c", script.text],
            input=input,
            capture_output=True,
            env=self.environment,
            cwd=self.home,
            check=False,
        )
        assert what is None or done.returncode == 0, done.stderr.decode()
        return done

    def start(self, script: Script, **streams: object) -> subprocess.Popen[bytes]:
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **streams}
        words = ["sh", "-c", script.text]
        return subprocess.Popen(words, env=self.environment, cwd=self.home, **options)  # type: ignore[call-overload, no-any-return]

    def git_environment(self) -> dict[str, str]:
        return {}

    def url(self, path: str) -> str:
        return path

    @property
    def _traffic(self) -> Path:
        return self.home / "traffic"

    @property
    def before(self) -> str:
        """Lines of sh after which git counts what it receives there."""
        program = self.home / "bin" / "git"
        if not program.exists():
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(_COUNTING.format(traffic=self._traffic, git=which("git")))
            program.chmod(0o755)
        return f"PATH={program.parent}:$PATH"

    def taken(self) -> int:
        """How many bytes were pushed since the last call."""
        if not self._traffic.exists():
            return 0
        size = self._traffic.stat().st_size
        self._traffic.unlink()
        return size

    def fetched(self, sent: Sent, recipe: str, *words: str) -> str:
        """What git says in a clone that an installation of a recipe would have there."""
        return self.receive(sent, [*self.python, "-c", _FETCH, recipe, *words]).decode().strip()

    def send(self) -> Sent:
        """Send the project of the current directory; the files there are as before."""
        self.home.mkdir(parents=True, exist_ok=True)
        return send_project(self, find_location("spica"), str(self.root), self.before)  # type: ignore[arg-type]

    def script(self, sent: Sent, words: Sequence[str], more: Mapping[str, str] = {}) -> Script:
        """What a command there is, in front of which the project's files are made."""
        command = Script.of(words, sent.working_directory, {**sent.variables, **more})
        return Script(f"{sent.receiving(sys.executable)}\n{command.text}")

    def receive(self, sent: Sent, words: Sequence[str] = ("true",)) -> bytes:
        """Make the files there, and execute a command."""
        return self.run(self.script(sent, words), what="receiving").stdout
