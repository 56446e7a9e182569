"""All paths below KOCHI_ROOT; those of runs, queues, workers and history by `tickets.names`.

KOCHI_ROOT/                              0700
  hosts/<host>/                          machine: that of its scheduler; told: that jobs run here
  machines/<machine>/
    found.yaml                           what its scheduler says of itself
    locks.json, locks/                   the directory and kind of the locks; the locks
    locks/projects/<name>-<digest>/      installs/, builds/, promises/, committer
    locks/sent/<name>-<id>               held while a project that was sent is unpacked
    runs/, queues/, workers/, history/   see docs/protocol.md and tickets/names.py
    workers/<worker>/login/              keys and configuration of an ssh server, asked, answer.json
    worker-settings/<digest>.json        the settings of workers that are started without a number
    allocations/                         <controller>-<allocation>.json and .log
    launches/<launch>/                   launch.json, process.json, alive, output, log.json,
                                         end.json, gone.json, time-up.json, stop-<n>.json
    facts/<host>/<digest>.json           what the commands of facts printed there
    paused/<digest>.json                 a batch whose jobs no worker starts
    tested                               `kochi doctor --allocations` found nothing wrong
    cleaned                              when a run last started a clean-up
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

from snakemake_kochi.paths.machine import (
    LaunchPaths,
    LockPaths,
    LoginPaths,
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
from snakemake_kochi.paths.remote import (
    SENT_VARIABLE,
    USE_VARIABLE,
    EnvironmentPaths,
    InstalledPaths,
    SentPaths,
)
from snakemake_kochi.paths.root import (
    Root,
    aside_path,
    is_being_removed,
    original_path,
    removed_path,
)
