"""A project whose runs are in allocations of a Slurm of its own, and what its jobs note."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from seen import list_jobs, list_workers
from slurm_cluster import SlurmCluster
from support import REPOSITORY, Process, git, start, wait_until, write

from snakemake_kochi.paths import MachinePaths, Root

PROFILE = REPOSITORY / "profiles" / "cluster"
# Each job notes its beginning and its end, and goes on when it may.
SNAKEFILE = """
    rule all:
        input: expand("out/{i}", i=range(COUNT))

    rule job:
        output: "out/{i}"
        shell:
            "echo $SLURM_JOB_ID >> began-{wildcards.i}; "
            "while [ ! -e go ]; do sleep 0.1; done; "
            "echo $SLURM_JOB_ID >> done-{wildcards.i}; touch {output}"
"""


class ClusterProject:
    """A project on a machine with a Slurm, and what its runs do."""

    def __init__(self, directory: Path, root: Path, cluster: SlurmCluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.machine: MachinePaths = Root(root).machine("own")
        self.runs: list[Process] = []
        self.environment = {**cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
        directory.mkdir()
        git(directory, "init", "--quiet")
        self.configure(max_workers=1, idle_timeout="30s")
        self.write_jobs(2)

    def __enter__(self) -> ClusterProject:
        return self

    def __exit__(self, *_: object) -> None:
        print(self.said if self.runs else "")
        for run in self.runs:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
        self.cluster.cancel_jobs()

    def configure(self, **allocation: object) -> None:
        settings = ", ".join(f"{key}: {value}" for key, value in allocation.items())
        text = f"machines: {{own: {{scheduler: slurm, allocation: {{{settings}}}}}}}\n"
        write(self.directory / "kochi.yaml", text)

    def write_jobs(self, count: int, text: str = SNAKEFILE) -> None:
        write(self.directory / "Snakefile", text.replace("COUNT", str(count)))

    def start(self, *arguments: str, path: Path | None = None) -> Process:
        """`path`: a directory that is all of PATH."""
        command = [sys.executable, "-m", "snakemake", "--profile", str(PROFILE), *arguments]
        environment = dict(self.environment)
        if path is not None:
            environment["PATH"] = str(path)
        with open(self.directory / f"said-{len(self.runs)}", "wb") as said:
            run = start(
                *command,
                cwd=self.directory,
                env=environment,
                output=said,
                start_new_session=True,
            )
        self.runs.append(run)
        return run

    @property
    def said(self) -> str:
        return (self.directory / f"said-{len(self.runs) - 1}").read_text()

    def lines(self, what: str) -> dict[str, list[str]]:
        """The lines of the files began-N or done-N, by N."""
        found = self.directory.glob(f"{what}-*")
        return {path.name.partition("-")[2]: path.read_text().split() for path in found}

    def wait_for_beginnings(self, count: int, seconds: float = 90) -> list[str]:
        """Until so many attempts have begun; returns the Slurm jobs in which they did."""

        def begun() -> list[str]:
            return [each for lines in self.lines("began").values() for each in lines]

        wait_until(
            lambda: len(begun()) >= count or self.runs[-1].poll() is not None, seconds=seconds
        )
        assert len(begun()) >= count, self.said
        return begun()

    def go(self) -> None:
        (self.directory / "go").touch()

    def end_well(self, seconds: float = 120) -> None:
        """The last run ends, and each job was done once."""
        try:
            assert self.runs[-1].wait(seconds) == 0, self.said
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not end:\n{self.said}") from None
        for job, done in self.lines("done").items():
            assert len(done) == 1, (job, done, self.said)
        ended = [view.result for view in list_jobs(self.machine, ended=True, limit=10_000)]
        reasons = [result.reason for result in ended if result is not None]
        assert [reason for reason in reasons if reason != "cancelled"] == ["success"] * len(
            self.lines("done")
        )
        assert "Traceback" not in self.said

    def states(self) -> list[str]:
        """Of all workers, by number."""
        return [worker.state for worker in list_workers(self.machine)]

    def worker_processes(self) -> list[psutil.Process]:
        found = []
        for worker in list_workers(self.machine):
            if worker.process.is_alive():
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(worker.process.pid))
        return found
