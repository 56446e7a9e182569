"""Isolated scripts in tests, and the processes that they leave."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support import wait_until, write

from snakemake_kochi.phases.isolation import Enclosure
from snakemake_kochi.phases.isolation_view import Place
from snakemake_kochi.phases.products import Install
from snakemake_kochi.phases.script import Ended, Environment, run_script
from snakemake_kochi.project.isolation import Isolation, MachineIsolation

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

    def enclosure(self, isolation: Isolation, machine: MachineIsolation | None = None) -> Enclosure:
        place = Place.of(self.directory, self.scratch, self.environment.installs)
        return Enclosure(isolation, machine, place, {}, KEY)

    def run(
        self, script: str, isolation: Isolation, machine: MachineIsolation | None = None
    ) -> tuple[Ended, str]:
        """How a script ends, and its output."""
        enclosure = self.enclosure(isolation, machine)
        environment, wrapper = enclosure.around(self.environment)
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
        enclosure.finish(ended, self.output)
        return ended, self.output.read_text()

    def command(
        self,
        script: str,
        isolation: Isolation = FILES,
        machine: MachineIsolation | None = None,
    ) -> list[str]:
        """The words that start an isolated script."""
        file = write(self.scratch / "script.sh", script)
        _, wrapper = self.enclosure(isolation, machine).around(self.environment)
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
