"""Every path below KOCHI_ROOT, in one place. No other package joins one.

KOCHI_ROOT/                              0700
  machines/<machine>/
    ids.json                             the next job and worker number
    numbers/<kind>/<shard>/<first>.json  a range of them that somebody has taken
    found.yaml                           what its scheduler told of it
    locks.json, locks/                   where the locks are and of which kind; the locks
    locks/projects/<name>-<digest>/      installs/, builds/, promises/, committer
    queues/<queue>/                      waiting/<shard>/, running/, damaged/, subscribers/
    jobs/<shard>/<job>/                  ticket.json, attempt-<n>.json, log, result.json, cancel
    workers/<worker>/                    worker.json, queues.json, wakeup, log
    controllers/<controller>/            controller.json, outputs.json, wakeup, inbox/, delivered/,
                                         adopter-<n>.json, gone
    runs/<controller>.json               which jobs and workers its run had
    allocations/                         <controller>-<allocation>.json and .log
    launches/<launch>/                   launch.json, process.json, output, end.json, gone.json
    nodes/<host>.cpus                    bytes are locked for the CPUs that jobs there have
  projects/<name>-<digest>/
    store.git                            snapshots
    freezes/<digest>.json                what a run was frozen to
    freezes/<digest>/<batch>.json        what of it the runs of one batch need
    repositories/<digest>/               the `.git` of copies of a snapshot
    installs/<machine>/<dependency>/<recipe>/<digest>/
    builds/<machine>/<digest>/           source tree with what was built in it
    artifacts/<machine>/                 journal/, damaged/, late/, directories/, committed,
                                         agreed.json, disagreed, discarded.json,
                                         replaced/
    workspaces/<machine>/                private copies in which runs happen
"""

from snakemake_kochi.paths.machine import (
    QUEUE_LOCKS,
    LockPaths,
    MachinePaths,
    ProjectLockPaths,
    TrialPaths,
)
from snakemake_kochi.paths.names import SHARD
from snakemake_kochi.paths.project import (
    SUBMODULES,
    BuildPaths,
    InstallPaths,
    ProjectPaths,
    WorkingPaths,
)
from snakemake_kochi.paths.queue import (
    ControllerPaths,
    JobPaths,
    LaunchPaths,
    QueuePaths,
    WorkerPaths,
)
from snakemake_kochi.paths.root import Root

__all__ = [
    "BuildPaths",
    "ControllerPaths",
    "InstallPaths",
    "JobPaths",
    "LaunchPaths",
    "LockPaths",
    "MachinePaths",
    "ProjectLockPaths",
    "ProjectPaths",
    "QUEUE_LOCKS",
    "QueuePaths",
    "Root",
    "SHARD",
    "SUBMODULES",
    "TrialPaths",
    "WorkerPaths",
    "WorkingPaths",
]
