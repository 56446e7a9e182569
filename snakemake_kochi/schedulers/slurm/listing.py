"""Reading what squeue and sacct say of allocations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from snakemake_kochi.schedulers.interface import Allocation, State
from snakemake_kochi.schedulers.slurm.answers import advice, has_failed, may_be_blind

# Of an array that has not begun: 12_[1-3,5%2].
_SEVERAL = re.compile(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]")
# squeue(1), JOB STATE CODES. What is not here is over; what is stopped goes on some day.
_PENDING = frozenset({"CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"})
_RUNNING = frozenset(
    {"COMPLETING", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
)
# Ended by people, or for others: that tells nothing of a node.
_CANCELLED = frozenset({"CANCELLED", "PREEMPTED", "REVOKED"})
# What sacct, and squeue of the first node, say of one that has not begun.
_NO_NODES = ("None assigned", "n/a")
# The first of `a[01-04,7],b3` is a01.
_FIRST_NODE = re.compile(r"([^\[,]*)(?:\[(\w+)[^\]]*\])?([^\[,]*)")


def read_listing(said: str, machine: str) -> dict[str, Allocation]:
    """All allocations by id, those that have ended included, from lines of id, state, nodes and
    reason with | between them. Other lines are left out: names of clusters, messages of the day."""
    lines = (line.split("|", 3) for line in said.splitlines() if line.count("|") >= 3)
    return {
        id: Allocation(
            *(id, _state(word), reason, "" if nodes in _NO_NODES else nodes),
            advice(reason, id, machine),
            has_failed=has_failed(reason),
            was_cancelled=word.partition(" ")[0] in _CANCELLED,
            may_be_blind=may_be_blind(reason),
        )
        for ids, word, nodes, reason in lines
        for id in _each(ids)
    }


def first_node(nodes: str) -> str:
    """The one on which the worker is, of those of an allocation as Slurm writes them."""
    found = _FIRST_NODE.match(nodes)
    return "".join(filter(None, found.groups())) if found else ""


def _each(ids: str) -> Iterator[str]:
    """The allocations behind what a listing names: `12_[1-3]` are three."""
    if (found := _SEVERAL.fullmatch(ids)) is None:
        yield ids
        return
    for part in found[2].split(","):
        first, _, last = part.partition("-")
        for index in range(int(first), int(last or first) + 1):
            yield f"{found[1]}_{index}"


def _state(word: str) -> State:
    """Of `CANCELLED by 1000` the first word counts."""
    word = word.partition(" ")[0]
    if word in _PENDING:
        return "pending"
    return "running" if word in _RUNNING else "ended"
