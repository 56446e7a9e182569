"""Isolated scripts in tests, and the processes that they leave."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from support import wait_until, write

from snakemake_kochi.phases.isolation import Container
from snakemake_kochi.phases.products import Install
from snakemake_kochi.phases.script import Ended, Environment, run_script
from snakemake_kochi.project.grid import Isolation

Machine = Mapping[str, Sequence[str]]
FILES = Isolation(("files",))
KEY = "fib.yaml: run"


class Isolated:
    """One isolated script after the other, in a workspace below a KOCHI_ROOT."""

    def __init__(self, top: Path) -> None:
        self.prefix = top / "root" / "installs" / "declared"
        self.undeclared = top / "root" / "installs" / "undeclared"
        self.scratch = top / "root" / "workspaces" / "one"
        self.directory = self.scratch / "workspace"
        for each in (self.prefix, self.undeclared):
            write(each / "lib" / "libfib.so", "a library")
        self.directory.mkdir(parents=True)
        self.output = self.scratch / "stdout"
        install = Install("fib", "release", "1" * 16, str(self.prefix), None, "")
        self.environment = Environment("", [install], {"KOCHI_PARAM_N": "7"})

    def container(self, isolation: Isolation, machine: Machine | None = None) -> Container:
        place = (self.directory, self.scratch, self.environment.installs, ())
        return Container(isolation, machine or {}, *place, key=KEY)

    def run(
        self, script: str, isolation: Isolation, machine: Machine | None = None
    ) -> tuple[Ended, str]:
        """How a script ends, and its output."""
        container = self.container(isolation, machine)
        environment, wrapper = container.around(self.environment)
        ended = run_script(
            script,
            "run_fib",
            self.directory,
            environment,
            False,
            self.scratch,
            self.output,
            wrapper=wrapper,
        )
        container.finish(ended, self.output)
        return ended, self.output.read_text()

    def command(
        self,
        script: str,
        isolation: Isolation = FILES,
        machine: Machine | None = None,
    ) -> list[str]:
        """The words that start an isolated script."""
        file = write(self.scratch / "script.sh", script)
        _, wrapper = self.container(isolation, machine).around(self.environment)
        return [*wrapper, "bash", str(file)]


def started(command: list[str], output: Path) -> subprocess.Popen[bytes]:
    """A process in a group of its own, as of a job, that has printed something."""
    with output.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, process_group=0)
    wait_until(lambda: output.stat().st_size > 0, "output")
    return process


def sleeping(marker: str) -> list[str]:
    """The processes that sleep so long."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and marker in Path("/proc", entry, "cmdline").read_text():
                found += [entry] if Path("/proc", entry, "comm").read_text() == "sleep\n" else []
        except OSError:
            pass
    return found
