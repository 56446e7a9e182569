"""The answers of Slurm's commands and their meaning.

The states of allocations, transient errors, and the settings to change after permanent ones. The
words are those of slurm_strerror(3), squeue(1) and sacct(1), Slurm 20 to 25.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from snakemake_kochi.schedulers.commands import run_command
from snakemake_kochi.schedulers.interface import Allocation, SettingsAt, State
from snakemake_kochi.schedulers.slurm.environment import without_outer_job

# The fault is the controller's, the network's or munge's, and a later try may succeed. After some
# of these errors a job was submitted all the same.
_TRANSIENT = (
    "socket timed out",
    "unable to contact slurm controller",
    "communication connection failure",
    "message send failure",
    "message receive failure",
    "unexpected message received",
    "zero bytes were transmitted",
    "in standby mode",
    "slurm temporarily unable to accept job",
    "slurm job queue full",
    "unable to create job record, try again",
    "protocol authentication error",
    "invalid authentication credential",
    "munge encode failed",
    "munge decode failed",
    "failed to open persistent connection",
    "problem talking to",
    "connection refused",
    "connection reset",
    "connection timed out",
    "connection closed",
    "broken pipe",
    "transport endpoint is not connected",
    "resource temporarily unavailable",
    "cannot allocate memory",
    "no route to host",
    "network is unreachable",
    "temporary failure in name resolution",
)

_PLACE = ("partition",)
_TIME = ("time",)
_SIZE = ("cores", "memory", "gpus")
# The messages of permanent refusals by sbatch, and the keys of `allocation` that may be the reason.
_REFUSALS: dict[str, tuple[str, ...]] = {
    "invalid partition name": _PLACE,
    "no partition specified": _PLACE,
    "group not permitted to use this partition": _PLACE,
    "required partition not available": _PLACE,
    "requested nodes not in this partition": ("partition", "arguments"),
    "requested partition configuration not available": ("partition", "time", "nodes", *_SIZE),
    "invalid account": ("account", "partition"),
    "invalid qos": ("qos",),
    "qos usage threshold": ("qos", "account"),
    "maxsubmitjob": ("max_workers", "account", "qos"),
    "job violates accounting/qos policy": ("max_workers", "time", "qos", "account", *_SIZE),
    "time limit": _TIME,
    "memory specification can not be satisfied": ("memory",),
    "cpu count per node can not be satisfied": ("cores",),
    "requested node configuration is not available": (*_SIZE, "nodes", "constraint"),
    "node count specification": ("nodes",),
    "more processors requested": ("cores",),
    "cpu count": ("cores",),
    "memory": ("memory",),
    "feature specification": ("constraint",),
    "gres": ("gres", "gpus"),
    "trackable resource": ("gres", "gpus"),
    "reservation": ("reservation",),
    "job array": ("max_workers",),
    "unrecognized option": ("arguments",),
    "invalid option": ("arguments",),
    "ambiguous": ("arguments",),
    "invalid node name": ("arguments",),
    "cluster": ("arguments",),
}

# Reasons of squeue for which a waiting allocation does not begin by itself, and the keys to change.
# Reasons that only take long are not listed: Priority, Resources, limits of concurrent jobs.
_HOPELESS: dict[str, tuple[str, ...]] = {
    "AccountNotAllowed": ("account", "partition"),
    "AssocMaxWallDurationPerJobLimit": ("time", "account"),
    "AssociationTimeLimit": _TIME,
    "BadConstraints": ("constraint", "partition", *_SIZE),
    "InvalidAccount": ("account",),
    "InvalidQOS": ("qos",),
    "PartitionConfig": ("partition", "time", "nodes", *_SIZE),
    "PartitionNodeLimit": ("nodes", "partition"),
    "PartitionTimeLimit": ("time", "partition"),
    "QOSMaxWallDurationPerJobLimit": ("time", "qos"),
    "QOSMinCpuNotSatisfied": ("cores", "qos"),
    "QOSNotAllowed": ("qos", "partition"),
    "QOSTimeLimit": ("time", "qos"),
    "ReservationDeleted": ("reservation",),
}
# The endings of the names of limits of one job; the names begin with a resource.
_HOPELESS_ENDS: dict[str, tuple[str, ...]] = {
    "PerJob": (*_SIZE, "time", "qos"),
    "PerJobLimit": (*_SIZE, "time", "qos"),
    "PerNode": _SIZE,
}
# Limits of concurrent jobs, of an account or a QOS: waiting helps, unless one job exceeds them.
# Also the budget of an account, while it is exhausted.
_SHARED_LIMITS = {"Assoc": "account", "QOS": "qos"}
_BUDGET = re.compile(r"Grp(?!\w*Run)\w*Minutes")
# Commands that show the limits, but not those of a parent account, which users may not see.
_SHOW = {
    "account": "sacctmgr show associations user=$USER "
    "format=account,partition,qos,maxjobs,maxsubmitjobs,maxwall,maxtres,grptres,grptresmins",
    "qos": "sacctmgr show qos format=name,maxjobspu,maxsubmitjobspu,maxwall,maxtres,maxtrespu,"
    "grptres,grptresmins",
}
# Slurm itself holds the job, because nodes could not begin it.
_FAILED = ("JobHoldMaxRequeue", "launch failed requeued held")
_HELD = ("JobHeldAdmin", "JobHeldUser", *_FAILED)
# The job's script ended it, as in the check for KOCHI_ROOT, or slurmstepd could not open the log,
# which older versions call signal 53. Failures of a prolog or of a node have other reasons.
_MAYBE_BLIND = ("NonZeroExitCode", "JobLaunchFailure", "RaisedSignal:53")
_NEVER = "DependencyNeverSatisfied"
_MAYBE = {
    "PartitionDown": _PLACE,
    "PartitionInactive": _PLACE,
    "ReqNodeNotAvail": ("time", "partition", "reservation"),
}
# Jobs of an array that have not begun: 12_[1-3,5%2].
_SEVERAL = re.compile(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]")
# squeue(1), JOB STATE CODES. All other states are final; a stopped job may continue.
_PENDING = frozenset({"CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"})
_RUNNING = frozenset(
    {"COMPLETING", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
)
# A person ended it, or it had to make room: this proves nothing about a node.
_CANCELLED = frozenset({"CANCELLED", "PREEMPTED", "REVOKED"})
# Slurm took its nodes.
_TAKEN = frozenset({"NODE_FAIL", "PREEMPTED"})
# The nodes of a job that has not begun, as sacct and squeue write them.
_NO_NODES = ("None assigned", "n/a")
# The first of `a[01-04,7],b3` is a01.
_FIRST_NODE = re.compile(r"([^\[,]*)(?:\[(\w+)[^\]]*\])?([^\[,]*)")


def run(command: Sequence[str], patience: float, text: str = "") -> str:
    """The output of one of Slurm's commands; see `run_command`."""
    environment = without_outer_job()
    if command[0] != "sbatch":  # the environment is that of the worker, and of its jobs
        environment["LC_ALL"] = "C"
    return run_command(command, environment, patience, text, is_transient, "slurm")


def is_transient(said: str) -> bool:
    """Whether a command that printed this may succeed another time."""
    return any(words in said.lower() for words in _TRANSIENT)


def concerned(said: str) -> tuple[str, ...]:
    """The keys of `allocation` that may be the reason of a refusal by sbatch, if they are known."""
    return next((keys for words, keys in _REFUSALS.items() if words in said.lower()), ())


def has_failed(reason: str) -> bool:
    """Whether an allocation waits because nodes could not begin it. Other nodes may."""
    return reason.replace("_", " ").strip("()").startswith(_FAILED)


def may_be_blind(reason: str) -> bool:
    """Whether an allocation may have ended because its node sees other files."""
    return reason.strip("()").startswith(_MAYBE_BLIND)


def is_unknown_partition(said: str) -> bool:
    """Whether sbatch refused the partition's name."""
    return "invalid partition name" in said.lower()


def advice(reason: str, allocation: str, settings_at: SettingsAt) -> str:
    """Advice about an allocation that waits for this reason; "" if it only has to wait."""
    plain = reason.replace("_", " ").strip("()")
    word = plain.partition(",")[0]
    if any(plain.startswith(held) for held in _HELD):
        return (
            "It is held, and does not begin by itself. To see why, type: "
            f"scontrol show job {allocation}. To release it, type: scontrol release {allocation}"
        )
    if word.startswith(_NEVER):
        return f"It never begins. See {settings_at(['arguments'])} (--dependency)."
    keys = _HOPELESS.get(word)
    if keys is None:
        keys = next((keys for end, keys in _HOPELESS_ENDS.items() if word.endswith(end)), None)
    if keys is not None:
        return f"It does not begin by itself. Change {settings_at(keys)}, then start the run again."
    if (keys := _MAYBE.get(word)) is not None:
        return (
            "It may take long: nodes are down, or reserved for maintenance that begins before it "
            "would end. To see them, type: sinfo --list-reasons; scontrol show reservation. A "
            f"shorter time or another partition may help: {settings_at(keys)}."
        )
    return next(
        (
            _advice_on_limit(word, key, settings_at)
            for prefix, key in _SHARED_LIMITS.items()
            if word.startswith(prefix)
        ),
        "",
    )


def _advice_on_limit(word: str, key: str, settings_at: SettingsAt) -> str:
    if _BUDGET.search(word):
        return (
            "The budget is exhausted, or what is left is less than the request. To see limits, "
            f"type: {_SHOW[key]}. Another {key} or a shorter time may help: "
            f"{settings_at([key, 'time'])}."
        )
    return (
        "It begins when other jobs under this limit have ended, and never if it requests more "
        f"than the limit. To see limits, type: {_SHOW[key]}. To request less, change "
        f"{settings_at([key, 'max_workers', *_SIZE])}."
    )


def how_to_see_limits(keys: Iterable[str]) -> str:
    """The command that shows the user's accounts, QOSs and limits, or "".

    "" if the refusal is not about one of these keys.
    """
    return _SHOW["account"] if _SHOW.keys() & set(keys) else ""


def read_listing(said: str, settings_at: SettingsAt) -> dict[str, Allocation]:
    """All allocations by id, including ended ones, from lines of id, state, nodes and reason.

    The fields are separated by |. Other lines are ignored: names of clusters, messages of the day.
    """
    lines = (line.split("|", 3) for line in said.splitlines() if line.count("|") >= 3)
    return {
        id: Allocation(
            *(id, _state(word), _reason(word, reason)),
            "" if nodes in _NO_NODES else nodes,
            advice(reason, id, settings_at),
            has_failed=has_failed(reason),
            was_cancelled=word.partition(" ")[0] in _CANCELLED,
            may_be_blind=may_be_blind(reason),
            was_taken=word in _TAKEN,
        )
        for ids, word, nodes, reason in lines
        for id in _each(ids)
    }


def first_node(nodes: str) -> str:
    """The node with the worker: the first of an allocation's nodes, in Slurm's notation."""
    found = _FIRST_NODE.match(nodes)
    return "".join(filter(None, found.groups())) if found else ""


def _each(ids: str) -> Iterator[str]:
    """The allocations that an entry of a listing stands for: `12_[1-3]` are three."""
    if (found := _SEVERAL.fullmatch(ids)) is None:
        yield ids
        return
    for part in found[2].split(","):
        first, _, last = part.partition("-")
        for index in range(int(first), int(last or first) + 1):
            yield f"{found[1]}_{index}"


def _reason(word: str, reason: str) -> str:
    """Why it waits, or how it ended if Slurm gives no reason for that, or took its nodes."""
    is_plain = word in _TAKEN or (_state(word) == "ended" and reason == "None")
    return word if is_plain else reason


def _state(word: str) -> State:
    """The state by the first word: `CANCELLED by 1000`."""
    word = word.partition(" ")[0]
    if word in _PENDING:
        return "pending"
    return "running" if word in _RUNNING else "ended"
