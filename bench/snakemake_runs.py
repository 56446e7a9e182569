"""Time whole runs of Snakemake, with many jobs of one rule, on any executor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import REPOSITORY
from snakemake_kochi.paths import MachinePaths, Root

PROFILE = REPOSITORY / "profiles" / "local"
CLUSTER_PROFILE = REPOSITORY / "profiles" / "cluster"
_LAST_LINES = 30

SHELL = 'shell: "echo {wildcards.i} > {output}"'
SCRIPT = 'script: "job.py"'
RUN = """run:
        with open(output[0], "w") as stream:
            print(wildcards.i, file=stream)"""

_SNAKEFILE = """\
rule all:
    input: expand("out/{{i}}", i=range({count}))

rule job:
    output: "out/{{i}}"
    {body}
"""
_SCRIPT = """\
with open(snakemake.output[0], "w") as stream:
    print(snakemake.wildcards.i, file=stream)
"""


@dataclass(frozen=True)
class Runner:
    """Runs Snakemake below a directory. All compared runs use one installation and environment."""

    directory: Path
    python: str = sys.executable

    @property
    def machine(self) -> MachinePaths:
        return Root(self.directory / "root").machine("local")

    def environment(self, further: Mapping[str, str] | None = None) -> dict[str, str]:
        """This process's environment without the user's settings for Kochi, Snakemake and Slurm.

        Python caches compiled modules, as in an installation.
        """
        foreign = ("KOCHI_", "SNAKEMAKE_", "SLURM_", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        kept["KOCHI_ROOT"] = str(self.directory / "root")
        path = [str(REPOSITORY), *filter(None, [kept.get("PYTHONPATH")])]
        return {**kept, "PYTHONPATH": os.pathsep.join(path), **(further or {})}

    def time(
        self,
        body: str,
        count: int,
        arguments: Sequence[str],
        further: Mapping[str, str] | None = None,
    ) -> float:
        """The seconds of a run in which `count` jobs of a rule with this `body` make a file each.

        Every run has a new directory. Raises RuntimeError, with the end of the output, if the run
        fails or a file is missing.
        """
        run_directory = Path(tempfile.mkdtemp(prefix="run-", dir=self.directory))
        write_workflow(run_directory, count, body)
        output = run_directory / "output"
        with open(output, "wb") as stream:
            began = time.perf_counter()
            done = subprocess.run(
                [self.python, "-m", "snakemake", *arguments],
                cwd=run_directory,
                env=self.environment(further),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                check=False,
            )
            seconds = time.perf_counter() - began
        made = sum(1 for _ in (run_directory / "out").glob("*"))
        if done.returncode or made != count:
            lines = output.read_text(errors="replace").splitlines()[-_LAST_LINES:]
            said = "\n".join([f"snakemake {' '.join(arguments)}: {made} of {count} files", *lines])
            raise RuntimeError(said)
        shutil.rmtree(run_directory)
        return seconds


def write_workflow(directory: Path, count: int, body: str) -> None:
    """The Snakefile of `count` jobs of a rule with this `body`, and the script that it may name."""
    (directory / "Snakefile").write_text(_SNAKEFILE.format(count=count, body=body))
    (directory / "job.py").write_text(_SCRIPT)


def local_executor(slots: int, *options: str) -> tuple[str, ...]:
    """Arguments for Snakemake's local executor.

    They name no profile of ours: with its `jobs:`, Snakemake takes the executor for a remote one,
    and runs more jobs at a time than there are cores.
    """
    return ("--executor", "local", "--cores", str(slots), *options)


def kochi_executor(slots: int, *options: str) -> tuple[str, ...]:
    """Arguments for the kochi executor, with the profile `local`."""
    return ("--profile", str(PROFILE), "--kochi-cores", str(slots), *options)
