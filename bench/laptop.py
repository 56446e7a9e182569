"""A laptop with a project, and a login host behind a link with latency, on this computer."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.link import Link, Traffic
from bench.measure import import_of_tests
from bench.snakemake_runs import Runner
from snakemake_kochi.paths import InstalledPaths, MachinePaths, Root
from snakemake_kochi.remote.wheels import identity

MACHINE = "bench"
_FILES = 200  # of the project, of some KB each
_EXPERIMENT = """\
batches:
  grid:
    params: {{n: {values}}}
    artifacts: [{{type: stdout, dest: "points/${{n}}.log"}}]
run:
  depend_params: [n]
  exclusive: false
  script: echo $KOCHI_PARAM_N {version}
"""


@dataclass(frozen=True)
class Taken:
    """What a command took since its start: seconds, sessions of ssh, and what went over the link;
    each connection there is a login."""

    seconds: float
    sessions: int
    traffic: Traffic


class Laptop:
    """While it is entered, `run` runs `kochi` in the project.

    There, this package is installed as `kochi machine setup` would leave it.
    """

    def __init__(self, directory: Path, latency: float) -> None:
        self.project = directory / "project"
        self._directory, self._latency = directory, latency
        self._collected = directory / "collected"
        self._host = import_of_tests("ssh_host").SshHost(MACHINE, directory)
        self._versions = itertools.count()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Laptop:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._host)
            self.link = stack.enter_context(Link(self._host.port, self._latency))
            self._host.port = self.link.port
            self._host.configure()
            self._install()
            self._make_project()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def machine(self) -> MachinePaths:
        """The machine's files, on the login host."""
        return Root(self._host.root).machine(MACHINE)

    def change(self, points: int) -> None:
        """Change a line of the experiment, so that each point of its batch is to run."""
        text = _EXPERIMENT.format(values=list(range(points)), version=next(self._versions))
        (self.project / "grid.yaml").write_text(text)

    def log_out(self) -> None:
        """End the connection that is open."""
        self._host.forget_logins()

    def forget_project(self) -> None:
        """Have nothing of the project there."""
        shutil.rmtree(self._host.root / "remote" / "projects", ignore_errors=True)

    def collect(self) -> None:
        """Have a place for results on the laptop."""
        self.run("artifact", "init", str(self._collected))

    def save(self) -> None:
        """Remember all files, here and there."""
        for each, saved in self._saved():
            _copy(each, saved)

    def restore(self) -> None:
        """Have all files as they were saved."""
        for each, saved in self._saved():
            shutil.rmtree(each)
            _copy(saved, each)

    def _saved(self) -> list[tuple[Path, Path]]:
        every = (self.project, self._collected, self._directory / "root", self._host.root)
        return [(each, self._directory / "saved" / each.name) for each in every]

    def run(self, *words: str) -> Taken:
        """Run kochi to its end. Raises RuntimeError, with the output, if it fails."""
        sessions, traffic = self._host.sessions, self.link.traffic
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "snakemake_kochi.cli", *words],
            cwd=self.project,
            env=Runner(self._directory).environment(
                {**self._host.environment, "HOME": str(self._directory)}
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seconds = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(f"kochi {' '.join(words)}\n{done.stdout}")
        return Taken(seconds, self._host.sessions - sessions, self.link.traffic - traffic)

    def _install(self) -> None:
        paths = InstalledPaths()
        there = self._host.root / paths.environments / MACHINE
        (there / "bin").mkdir(parents=True, mode=0o700)
        (there / "bin" / "python").symlink_to(sys.executable)
        shutil.copy(self._host.bin / "kochi", there / "bin" / "kochi")
        link = self._host.root / paths.current(identity())
        link.symlink_to(os.path.relpath(there, link.parent))

    def _make_project(self) -> None:
        source = self.project / "source"
        source.mkdir(parents=True)
        for number in range(_FILES):
            # Half of it is like a program, and half of it can hardly be compressed.
            lines = "".join(f"int f{each}_{number}(int);\n" for each in range(100))
            (source / f"file{number}.c").write_text(lines + os.urandom(1000).hex())
        (self.project / "kochi.yaml").write_text(self._host.machine())
        self.change(1)
        person = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        commit = (*person, "commit", "--quiet", "-m", "Begin")
        for words in (("init", "--quiet"), ("add", "."), commit):
            subprocess.run(["git", *words], cwd=self.project, check=True)


def _copy(directory: Path, copy: Path) -> None:
    """With its named pipes."""
    copy.parent.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", directory, copy], check=True)
