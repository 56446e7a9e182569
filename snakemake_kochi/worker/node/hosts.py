"""The nodes of a worker's Slurm allocation, for jobs that use all of them."""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from snakemake_kochi.files import write_atomically

_log = logging.getLogger(__name__)

_PATIENCE = 20.0  # seconds, for scontrol
# The format of SLURM_JOB_CPUS_PER_NODE: 4(x2),8
_CPUS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
# The CPU binding of the batch step: srun would bind each step of a job in the same way.
_OF_BATCH_STEP = "SLURM_CPU_BIND"


def environment_for_jobs(environment: Mapping[str, str], file: Path) -> dict[str, str]:
    """A worker's environment, and in a Slurm allocation also its nodes: KOCHI_NODELIST, host names
    separated by commas, and KOCHI_HOSTFILE, for mpirun, with a line `HOST slots=CPUS` for each
    host. It writes the latter to `file`."""
    found = {
        name: value for name, value in environment.items() if not name.startswith(_OF_BATCH_STEP)
    }
    try:
        hosts = _hosts(environment)
        if hosts:
            lines = [f"{host} slots={cpus}\n" for host, cpus in hosts.items()]
            write_atomically(file, "".join(lines).encode())
            found["KOCHI_NODELIST"] = ",".join(hosts)
            found["KOCHI_HOSTFILE"] = str(file)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # Most jobs do not need them.
        _log.warning("jobs are not told the nodes of their allocation: %s", error)
    return found


def _hosts(environment: Mapping[str, str]) -> dict[str, int]:
    """The hosts, each with the number of its CPUs that belong to the allocation; none outside of
    one. Raises OSError, ValueError or SubprocessError."""
    if not (names := environment.get("SLURM_JOB_NODELIST")):
        return {}
    hosts = [names] if not re.search(r"[\[,]", names) else _expanded(names)
    cpus = _cpus(environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return dict(zip(hosts, cpus or [1] * len(hosts), strict=True))


def _expanded(names: str) -> list[str]:
    done = subprocess.run(
        ["scontrol", "show", "hostnames", names],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=True,
    )
    return done.stdout.split()


def _cpus(said: str) -> list[int]:
    return [int(cpus) for cpus, times in _CPUS.findall(said) for _ in range(int(times or 1))]
