"""Another computer that is a directory here: a home and a KOCHI_ROOT of its own, without ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import IO

from snakemake_kochi.location import find_location
from snakemake_kochi.remote.project import Sent, send_project
from snakemake_kochi.remote.script import Script

MACHINE = "machines:\n  spica:\n    login_host: nowhere.example\n"
_GIT = """#!/bin/sh
if [ "$1" = receive-pack ]; then
    [ -e '{home}/break' ] && exec head -c "$(cat '{home}/break')" | {git} "$@"
    tee -a '{home}/traffic' | {git} "$@"
    exit
fi
if [ -e '{home}/kill' ]; then
    read step when < '{home}/kill'
    if [ "$step" -gt 1 ]; then
        echo "$((step - 1)) $when" > '{home}/kill'
    else
        rm '{home}/kill'
        [ $when = before ] || {git} "$@" > /dev/null
        kill -9 $PPID
        exit 1
    fi
fi
exec {git} "$@"
"""
RECEIVE = """
import os, sys
from pathlib import Path
from snakemake_kochi.paths import SentPaths
from snakemake_kochi.remote.receive import receive
place, parcel, directory, *words = sys.argv[1:]
receive(SentPaths(Path(place)), parcel, os.environ["KOCHI_SENT_USE"], os.getpid())
os.makedirs(directory, exist_ok=True)
os.chdir(directory)
if words[:3] != [sys.executable, "-P", "-c"]:
    os.execvp(words[0], words)
# As every command of kochi, which is the process that has received.
sys.argv = ["-c", *words[4:]]
exec(words[3], {"__name__": "__main__"})
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
        own |= {"PATH": f"{self._programs}:{os.environ['PATH']}", "KOCHI_DEFAULT_MACHINE": "spica"}
        return {**os.environ, **own}

    @property
    def _programs(self) -> Path:
        """The directory with git and kochi there."""
        kochi = f'#!/bin/sh\nexec {sys.executable} -P -m snakemake_kochi.cli "$@"\n'
        for name, text in (
            ("git", _GIT.format(home=self.home, git=which("git"))),
            ("kochi", kochi),
        ):
            program = self.home / "bin" / name
            if not program.exists():
                program.parent.mkdir(parents=True, exist_ok=True)
                program.write_text(text)
                program.chmod(0o755)
        return self.home / "bin"

    @property
    def before(self) -> str:
        """Lines of bash after which git is found there."""
        return f"PATH={self._programs}:$PATH"

    def run(
        self, script: Script, input: bytes | IO[bytes] = b"", what: str | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        assert isinstance(input, bytes)
        done = subprocess.run(
            ["bash", "--norc", "-c", script.text],
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
        words = ["bash", "--norc", "-c", script.text]
        return subprocess.Popen(words, env=self.environment, cwd=self.home, **options)  # type: ignore[call-overload, no-any-return]

    def git_environment(self) -> dict[str, str]:
        return {}

    def url(self, path: str) -> str:
        return path

    def taken(self) -> int:
        """How many bytes were pushed since the last call."""
        traffic = self.home / "traffic"
        if not traffic.exists():
            return 0
        size = traffic.stat().st_size
        traffic.unlink()
        return size

    def break_after(self, size: int) -> None:
        """From now on, only so many bytes of a push arrive; 0: all."""
        (self.home / "break").unlink(missing_ok=True)
        if size:
            (self.home / "break").write_text(f"{size}\n")

    def kill_at(self, step: int, when: str) -> None:
        """Kill the process there that starts git for the n-th time, before or after git runs."""
        (self.home / "kill").write_text(f"{step} {when}\n")

    def fetched(self, sent: Sent, recipe: str, *words: str) -> str:
        """What git says in a clone that an installation of a recipe would have there."""
        return self.receive(sent, [*self.python, "-c", _FETCH, recipe, *words]).decode().strip()

    def send(self) -> Sent:
        """Send the project of the current directory; the files there are as before."""
        self.home.mkdir(parents=True, exist_ok=True)
        return send_project(self, find_location("spica"), str(self.root), self.before)  # type: ignore[arg-type]

    def script(self, sent: Sent, words: Sequence[str]) -> Script:
        """What a command there is, in front of which the project's files are made."""
        place = [sent.place, sent.parcel, sent.working_directory]
        return Script.of([*self.python, "-c", RECEIVE, *place, *words], None, sent.variables)

    def receive(self, sent: Sent, words: Sequence[str] = ("true",)) -> bytes:
        """Make the files there, and execute a command."""
        return self.run(self.script(sent, words), what="receiving").stdout
