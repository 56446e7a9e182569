"""With nodes that are there for the tests alone: this one with another, and two others."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from snakemake_kochi.doctor.between_nodes import Pair
from snakemake_kochi.doctor.child import Measurements
from snakemake_kochi.doctor.finding import Finding, Outcome
from snakemake_kochi.queue.processes import Node, this_node

_BETWEEN = "between nodes"
_COMPUTE = "between compute nodes"


@dataclass(frozen=True)
class OtherNode:
    """A node with a worker that alone serves `queue`, for tickets of the `controller`. `name` is
    what those who give nodes call it, `said` tells people how it was got."""

    node: Node
    queue: str
    controller: str
    name: str
    said: str


class OtherNodes(Protocol):
    """Who gives nodes, and takes them back by itself."""

    def get(self, not_on: Sequence[str]) -> OtherNode | Outcome:
        """One more, on none of those that are named, if that can be; or why there is none."""


def examine_others(
    measurements: Measurements, machine: Mapping[str, Any], others: OtherNodes
) -> Generator[Finding]:
    """Of the nodes on which workers are, each may be with each other: here with one of them is not
    enough, where login nodes have their filesystems from other servers than compute nodes."""
    first = others.get(())
    if isinstance(first, Outcome):
        yield Finding(_BETWEEN, "", first)
        return
    yield Finding("allocation", "", Outcome("ok", first.said))
    if this_node().can_see(first.node):
        said = f"not tested: the allocation is on this very node ({first.node.host})"
        yield Finding(_BETWEEN, "", Outcome("warning", said, "Type the same on a login node."))
    else:
        pair = Pair(first.queue, first.controller)
        yield from measurements.run("between nodes", {**machine, "pair": asdict(pair)})
    second = others.get((first.name,))
    if isinstance(second, Outcome):
        yield Finding(_COMPUTE, "", second)
        return
    yield Finding("allocation", "", Outcome("ok", second.said))
    if second.node == first.node:
        said = f"not tested: both allocations are on {first.node.host}"
        advice = "Try again when other nodes are free, or in another partition."
        yield Finding(_COMPUTE, "", Outcome("warning", said, advice))
        return
    pair = Pair(second.queue, second.controller, _COMPUTE, first.node.host)
    # The directories of the first test may be known there still.
    nonce = f"{machine['nonce']}-2"
    given = {**machine, "nonce": nonce, "pair": asdict(pair), "queue": first.queue}
    yield from measurements.run("elsewhere", given)
