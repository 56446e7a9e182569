"""All paths below KOCHI_ROOT. No other package builds one.

KOCHI_ROOT/                              0700
  hosts/<host>/                          machine: that of its scheduler; told: that jobs run here
  machines/<machine>/
    ids.json                             the next job and worker number
    numbers/<kind>/<shard>/<first>.json  a range of numbers that a process has taken
    found.yaml                           what its scheduler says of itself
    locks.json, locks/                   the directory and kind of the locks; the locks
    locks/projects/<name>-<digest>/      installs/, builds/, promises/, committer
    locks/sent/<name>-<id>               held while a project that was sent is unpacked
    queues/<queue>/                      waiting/<shard>/, running/, damaged/, subscribers/
    jobs/<shard>/<job>/                  ticket.json, attempt-<n>.json, log, result.json, cancel
    packs/<group>/                       <shard>-<nonce>.zip, index-<nonce>.jsonl: ended jobs
    workers/<worker>/                    worker.json, queues.json, wakeup, log
    workers/<worker>/login/              keys and configuration of an ssh server, asked, answer.json
    controllers/<controller>/            controller.json, outputs.json, wakeup, inbox/, delivered/,
                                         adopter-<n>.json, gone
    runs/<controller>.json               the jobs and workers of its run
    allocations/                         <controller>-<allocation>.json and .log
    launches/<launch>/                   launch.json, process.json, output, end.json, gone.json
    nodes/<host>.cpus                    one byte is locked for each CPU of a job there
  projects/<name>-<digest>/
    store.git                            snapshots
    freezes/<digest>.json                the state of the project at the start of a run
    freezes/<digest>/<batch>.json        the part of it that the runs of one batch need
    freezes/<digest>/failures.json       why points of a rerun failed
    reruns/<digest>.json                 a rerun whose process has not ended yet, or was killed
    repositories/<digest>/               the `.git` of copies of a snapshot
    installs/<machine>/<dependency>/<recipe>/<digest>/
    builds/<machine>/<digest>/           source tree with the files built in it
    prepared/<machine>/<digest>/         what the `prepare` script of a batch has made
    artifacts/<machine>/                 journal/, damaged/, late/, directories/, committed,
                                         agreed.json, disagreed, discarded.json,
                                         replaced/
    workspaces/<machine>/                private copies in which runs happen
  remote/                                of a machine to which people come by ssh
    wheels/                              from which this package was installed
    pythons/<version>-<nonce>/           an environment with this package
    python-<version>                     link to the one that is used
  remote/projects/<name>-<id>/           a project that another computer sent
    <name>/                              its repository and working tree, where commands run
    sources/<digest>/<name>/             the local sources of its recipes
    sent/                                its machines-<n>.yaml and kochi.yaml, uses/, <digest>.index
"""

from snakemake_kochi.paths.installed import EnvironmentPaths, InstalledPaths
from snakemake_kochi.paths.machine import (
    QUEUE_LOCKS,
    LockPaths,
    MachinePaths,
    ProjectLockPaths,
    TrialPaths,
)
from snakemake_kochi.paths.project import (
    SUBMODULES,
    BuildPaths,
    InstallPaths,
    ProjectPaths,
    WorkingPaths,
)
from snakemake_kochi.paths.queue import (
    DRAFT,
    SHARD,
    ControllerPaths,
    JobPaths,
    LaunchPaths,
    LoginPaths,
    PackGroupPaths,
    QueuePaths,
    WorkerPaths,
)
from snakemake_kochi.paths.root import (
    Root,
    aside_path,
    is_being_removed,
    original_path,
    removed_path,
)
from snakemake_kochi.paths.sent import SENT_VARIABLE, USE_VARIABLE, SentPaths

__all__ = [
    "BuildPaths",
    "ControllerPaths",
    "DRAFT",
    "EnvironmentPaths",
    "InstallPaths",
    "InstalledPaths",
    "JobPaths",
    "LaunchPaths",
    "LockPaths",
    "LoginPaths",
    "MachinePaths",
    "PackGroupPaths",
    "ProjectLockPaths",
    "ProjectPaths",
    "QUEUE_LOCKS",
    "QueuePaths",
    "Root",
    "SENT_VARIABLE",
    "SHARD",
    "SUBMODULES",
    "SentPaths",
    "TrialPaths",
    "USE_VARIABLE",
    "WorkerPaths",
    "WorkingPaths",
    "aside_path",
    "is_being_removed",
    "original_path",
    "removed_path",
]
