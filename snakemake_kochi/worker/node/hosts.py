"""The nodes of a worker's allocation, for jobs that use all of them."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping
from pathlib import Path

from snakemake_kochi.files import write_atomically
from snakemake_kochi.schedulers.native import own_allocation

_log = logging.getLogger(__name__)


def environment_for_jobs(environment: Mapping[str, str], file: Path) -> dict[str, str]:
    """A worker's environment as its jobs get it. In an allocation it also has KOCHI_NODELIST, the
    host names separated by commas, and KOCHI_HOSTFILE, for mpirun: the name of `file`, which is
    written here, with a line `HOST slots=CPUS` for each host."""
    own = own_allocation(environment)
    if own is None:
        return dict(environment)
    found = {name: value for name, value in environment.items() if own.is_for_jobs(name)}
    try:
        if hosts := own.hosts():
            lines = [f"{host} slots={cpus}\n" for host, cpus in hosts.items()]
            write_atomically(file, "".join(lines).encode())
            found["KOCHI_NODELIST"] = ",".join(hosts)
            found["KOCHI_HOSTFILE"] = str(file)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # Most jobs do not need them.
        _log.warning("jobs are not told the nodes of their allocation: %s", error)
    return found
