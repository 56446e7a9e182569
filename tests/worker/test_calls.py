"""How many calls to a file server a short job costs its worker: what `kochi doctor` expects."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from workers_site import Site

from snakemake_kochi.doctor.filesystem import CALLS_PER_TICKET
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.settings import save_settings

JOBS = 200
IS_FSTAT = re.compile(r"newfstatat\(\d")


def test_a_short_job_costs_as_many_calls_as_doctor_expects(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "600")  # what it does by the clock does not count
    site.submit(*(f"true {n}" for n in range(JOBS)))
    trace = tmp_path / "trace"
    # Calls that name a file or list a directory: a server is asked for most.
    tracer = ["strace", "-D", "-f", "-y", "-e", "trace=%file,getdents64", "-o", str(trace)]
    command = start_command(save_settings(site.settings(cores=2)))
    site.workers.append(subprocess.Popen([*tracer, *command], stdin=subprocess.DEVNULL))
    assert len(site.collect(JOBS)) == JOBS
    own = [line for line in trace.read_text().splitlines() if site.layout.directory in line]
    # A line in two parts is one call; fstat(2) asks for nothing that its open did not.
    calls = [line for line in own if " resumed>" not in line and not IS_FSTAT.search(line)]
    # Read, claim, make the log, note the end, move it, wake the run. On a busy computer it
    # looks for tickets more often between two of them.
    assert CALLS_PER_TICKET - 1 < len(calls) / JOBS < CALLS_PER_TICKET + 2
