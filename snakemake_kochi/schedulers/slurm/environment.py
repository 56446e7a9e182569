"""Slurm's environment variables: their information for a job, and the ones its commands get."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence

NODE_VARIABLE = "SLURMD_NODENAME"
# Words for bash in a job. The id is in the form that Slurm's own commands print: 12, or 12_3 for an
# allocation of an array. A requeued job keeps it.
ID = '"${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"'
# The index in an array, from 0: the array begins with 1.
INDEX = "${SLURM_ARRAY_TASK_ID:-1} - 1"
# The cores that Slurm has granted, possibly more than requested; not all cores of the node.
CORES = '"$SLURM_CPUS_ON_NODE"'

RECORDED_VARIABLES = (
    *("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"),
    *("SLURM_JOB_PARTITION", "SLURM_NTASKS*", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"),
    *("SLURM_CPU_BIND*", "SLURM_CPU_FREQ_REQ", "SLURM_DISTRIBUTION", "SLURM_HINT"),
    *("SLURM_MEM_PER_*", "SLURM_MEM_BIND*", "SLURM_GPUS*", "SLURM_THREADS_PER_CORE"),
)

# Variables by which Slurm's commands and the tasks of a step find their job.
ALLOCATION_VARIABLES = ("SLURM_*", "SLURMD_*", "PMI_*", "PMI2_*", "PMIX_*")

_PATIENCE = 20.0  # seconds for one answer: a worker does not wait for an unreachable controller
# SLURM_JOB_CPUS_PER_NODE: 4(x2),8
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")
# The binding of the batch step: srun would bind each step of a job in the same way.
_OF_BATCH_STEP = "SLURM_CPU_BIND"

# Variables of a job from which sbatch, and then the worker, would take that job's shape; and the
# user's filters and formats, which change the output of the commands.
_NOT_PASSED_ON = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "PMI_", "PMIX_", "OMPI_"),
    *("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_"),
)
# The address of the cluster and the credentials of users; and the defaults for a user's jobs, which
# people set once in their shell's start-up file.
_PASSED_ON = (
    *("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"),
    *("SBATCH_ACCOUNT", "SBATCH_CONSTRAINT", "SBATCH_PARTITION", "SBATCH_QOS"),
    *("SBATCH_RESERVATION", "SBATCH_TIMELIMIT"),
)


def without_outer_job() -> dict[str, str]:
    """The environment for Slurm's commands, without the variables of an outer Slurm job.

    The controller may run in such a job.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or not name.startswith(_NOT_PASSED_ON)
    }


def without_outer_job_words() -> list[str]:
    """Words in front of a command that has to run in the environment of `without_outer_job`."""
    kept = without_outer_job()
    names = [name for name in os.environ if name not in kept]
    return ["env", *(word for name in names for word in ("-u", name))] if names else []


def default_partition() -> str | None:
    """The partition in which the user's jobs run if nothing else names one."""
    return os.environ.get("SBATCH_PARTITION")


def own_allocation(environment: Mapping[str, str]) -> SlurmAllocation | None:
    """See `environment.own_allocation`."""
    return SlurmAllocation(environment) if environment.get("SLURM_JOB_ID") else None


class SlurmAllocation:
    """The job in which a process with this environment runs; see `environment.OwnAllocation`."""

    scheduler = "slurm"

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    @property
    def id(self) -> str:
        return self._environment["SLURM_JOB_ID"]

    @property
    def began(self) -> float | None:
        return self._number("SLURM_JOB_START_TIME")  # since 23.02

    @property
    def nodes(self) -> int | None:
        number = self._number("SLURM_JOB_NUM_NODES")
        return None if number is None else int(number)

    def seconds_left(self, expected: float | None) -> float | None:
        end = self._number("SLURM_JOB_END_TIME")  # since 23.02
        if end is not None:
            return end - time.time()
        # Thousands of workers must not each send a question to the controller.
        return self._ask_seconds_left() if expected is None else expected

    def _ask_seconds_left(self) -> float | None:
        job = self.id
        if array := self._environment.get("SLURM_ARRAY_JOB_ID"):
            # The last job of an array has the number of the whole array, which stands for all.
            job = f"{array}_{self._environment.get('SLURM_ARRAY_TASK_ID')}"
        # Imported here: it loads more than most processes need that import this module.
        from snakemake_kochi.quantities import walltime_of

        # %L: UNLIMITED, NOT_SET, INVALID, or a time as sbatch takes it.
        command = ["squeue", "--noheader", "--format=%L", f"--jobs={job}"]
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            return walltime_of(_ask(command).strip())
        return None

    @property
    def memory_mb(self) -> int | None:
        # If a job requests no memory, these have the cluster's default, if it limits the memory.
        of_node, of_core = map(self._number, ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"))
        cores = self._number("SLURM_CPUS_ON_NODE")
        amounts = [of_node, of_core * cores if of_core and cores else None]
        return min((int(each) for each in amounts if each), default=None)  # 0 means no limit

    def hosts(self) -> dict[str, int]:
        names = self._environment.get("SLURM_JOB_NODELIST", "")
        hosts = [names] if names else []
        if re.search(r"[\[,]", names):
            hosts = _ask(["scontrol", "show", "hostnames", names]).split()
        cpus = self._of_each_node("SLURM_JOB_CPUS_PER_NODE")
        return dict(zip(hosts, cpus or [1] * len(hosts), strict=True))

    @property
    def tasks(self) -> list[int]:
        return self._of_each_node("SLURM_TASKS_PER_NODE")

    @property
    def cpus_per_task(self) -> int | None:
        number = self._number("SLURM_CPUS_PER_TASK")
        return None if number is None else int(number)

    def variables_for(self, tasks: Sequence[int]) -> dict[str, str]:
        return {
            "SLURM_TASKS_PER_NODE": ",".join(map(str, tasks)),
            # mpirun starts a process on each node by srun, which would wait for other steps.
            "SLURM_OVERLAP": "1",
        }

    def _of_each_node(self, name: str) -> list[int]:
        """The numbers in a text such as 4(x2),8."""
        found = _REPEATED.findall(self._environment.get(name, ""))
        return [int(number) for number, times in found for _ in range(int(times or 1))]

    def is_for_jobs(self, name: str) -> bool:
        return not name.startswith(_OF_BATCH_STEP)

    def _number(self, name: str) -> float | None:
        try:
            return float(self._environment[name])
        except (KeyError, ValueError):
            return None


def _ask(command: list[str]) -> str:
    """Ask one of Slurm's commands. Raises OSError, or SubprocessError."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=True,
    )
    return done.stdout
