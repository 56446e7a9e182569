"""The environment from which a worker makes that of each job."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping
from pathlib import Path

from snakemake_kochi.files import write_atomically
from snakemake_kochi.schedulers.environment import own_allocation

_log = logging.getLogger(__name__)

# With this variable each Snakemake that a job runs loads the profile of the Snakemake that
# submitted the job.
_NOT_FOR_JOBS = ("SNAKEMAKE_PROFILE",)


def environment_for_jobs(environment: Mapping[str, str], file: Path) -> dict[str, str]:
    """The environment from which each job's environment is made.

    In an allocation it also has two variables: KOCHI_NODELIST, the host names separated by commas,
    and, for mpirun, KOCHI_HOSTFILE, the name of `file`. This function writes a line `HOST
    slots=CPUS` for each host to `file`.
    """
    found = {name: environment[name] for name in environment if name not in _NOT_FOR_JOBS}
    if (allocation := own_allocation(environment)) is None:
        return found
    found = {name: value for name, value in found.items() if allocation.is_for_jobs(name)}
    try:
        if hosts := allocation.hosts():
            lines = [f"{host} slots={cpus}\n" for host, cpus in hosts.items()]
            write_atomically(file, "".join(lines).encode())
            found["KOCHI_NODELIST"] = ",".join(hosts)
            found["KOCHI_HOSTFILE"] = str(file)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # Go on: most jobs do not need these variables.
        _log.warning("KOCHI_NODELIST and KOCHI_HOSTFILE are not set for jobs: %s", error)
    return found
