"""What Slurm's words mean: which errors pass, and what to change for those that do not.

The words are those of slurm_strerror(3) and of squeue's reasons, Slurm 20 to 25.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# The fault is the controller's, the network's or munge's, and a later try may do. With some of
# them a job was submitted all the same.
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
# What sbatch says when it refuses for good, and the keys of `allocation` that it may be about.
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

# Why an allocation that waits will not begin by itself, by how squeue's reason begins, and the keys
# to change. What only takes long is not here: Priority, Resources, limits of what runs together.
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
# Limits of one job, whose names are made of these and a resource.
_HOPELESS_ENDS: dict[str, tuple[str, ...]] = {
    "PerJob": (*_SIZE, "time", "qos"),
    "PerJobLimit": (*_SIZE, "time", "qos"),
    "PerNode": _SIZE,
}
# Limits of what runs together, of an account or a QOS: waiting helps, unless one job is more than
# they allow. And what an account may use in all, as long as it is used up.
_SHARED_LIMITS = {"Assoc": "account", "QOS": "qos"}
_BUDGET = re.compile(r"Grp(?!\w*Run)\w*Minutes")
# What shows them. A parent account's are not shown, as those who ask may not see them.
_SHOW = {
    "account": "sacctmgr show associations user=$USER "
    "format=account,partition,qos,maxjobs,maxsubmitjobs,maxwall,maxtres,grptres,grptresmins",
    "qos": "sacctmgr show qos format=name,maxjobspu,maxsubmitjobspu,maxwall,maxtres,maxtrespu,"
    "grptres,grptresmins",
}
# Held by Slurm itself, for nodes that could not begin it.
_FAILED = ("JobHoldMaxRequeue", "launch failed requeued held")
_HELD = ("JobHeldAdmin", "JobHeldUser", *_FAILED)
# Ended by its script, as by the check for KOCHI_ROOT, or as slurmstepd could not open the log; of
# which older ones say that there was a signal 53. Not a prolog's failure, nor that of a node.
_MAYBE_BLIND = ("NonZeroExitCode", "JobLaunchFailure", "RaisedSignal:53")
_NEVER = "DependencyNeverSatisfied"
_MAYBE = {
    "PartitionDown": _PLACE,
    "PartitionInactive": _PLACE,
    "ReqNodeNotAvail": ("time", "partition", "reservation"),
}


def is_transient(said: str) -> bool:
    """Whether a command that said this may succeed another time."""
    return any(words in said.lower() for words in _TRANSIENT)


def concerned(said: str) -> tuple[str, ...]:
    """The keys of `allocation` that a refusal of sbatch's may be about; none where not known."""
    return next((keys for words, keys in _REFUSALS.items() if words in said.lower()), ())


def has_failed(reason: str) -> bool:
    """Whether an allocation waits because nodes could not begin it. On others another one may."""
    return reason.replace("_", " ").strip("()").startswith(_FAILED)


def may_be_blind(reason: str) -> bool:
    """Whether an allocation that has ended may have done so because its node sees other files."""
    return reason.strip("()").startswith(_MAYBE_BLIND)


def is_unknown_partition(said: str) -> bool:
    """Whether sbatch refused the partition's name."""
    return "invalid partition name" in said.lower()


def where(machine: str, keys: Iterable[str]) -> str:
    """For people, where the keys are: "machines: own: allocation: time, qos in kochi.yaml". The
    machine is told by its name, or as "own in FILE" if its file is another one."""
    name, _, file = machine.partition(" in ")
    return f"machines: {name}: allocation: {', '.join(keys) or '...'} in {file or 'kochi.yaml'}"


def advice(reason: str, allocation: str, machine: str) -> str:
    """What to do about an allocation that waits for this reason; "" where waiting is all."""
    plain = reason.replace("_", " ").strip("()")
    word = plain.partition(",")[0]
    if any(plain.startswith(held) for held in _HELD):
        return (
            "It is held, and does not begin by itself. To see why, type: "
            f"scontrol show job {allocation}. To let it go: scontrol release {allocation}"
        )
    if word.startswith(_NEVER):
        return f"It never begins. See {where(machine, ['arguments'])} (--dependency)."
    keys = _HOPELESS.get(word)
    if keys is None:
        keys = next((keys for end, keys in _HOPELESS_ENDS.items() if word.endswith(end)), None)
    if keys is not None:
        return (
            f"It does not begin by itself. Change {where(machine, keys)}, and start the run anew."
        )
    if (keys := _MAYBE.get(word)) is not None:
        return (
            "It may take long: nodes are down, or reserved for maintenance that begins before it "
            "would end. To see, type: sinfo --list-reasons; scontrol show reservation. A shorter "
            f"time or another partition may help: {where(machine, keys)}."
        )
    return next(
        (
            _advice_on_limit(word, key, machine)
            for prefix, key in _SHARED_LIMITS.items()
            if word.startswith(prefix)
        ),
        "",
    )


def _advice_on_limit(word: str, key: str, machine: str) -> str:
    if _BUDGET.search(word):
        return (
            "What may be used is used up, or less is left than it asks for. To see limits, type: "
            f"{_SHOW[key]}. Another {key} or a shorter time may help: "
            f"{where(machine, [key, 'time'])}."
        )
    return (
        "It begins when others under this limit have ended, and never if it asks for more than "
        f"the limit is. To see limits, type: {_SHOW[key]}. What to change: "
        f"{where(machine, [key, 'max_workers', *_SIZE])}."
    )


def how_to_see_limits(keys: Iterable[str]) -> str:
    """What to type to see the accounts, QOSs and limits of the user's, where a refusal is about
    keys of these; "" if not."""
    return _SHOW["account"] if _SHOW.keys() & set(keys) else ""
