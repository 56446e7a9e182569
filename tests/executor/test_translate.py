"""What of a Snakemake job's resources goes into its ticket."""

from __future__ import annotations

from typing import Any

import pytest

from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.choice import Choice
from snakemake_kochi.executor.inner import InnerCommand
from snakemake_kochi.executor.translate import make_ticket, resources_of
from snakemake_kochi.queue import Capacity
from snakemake_kochi.worker.node import gpus_of_this_node


class Rule:
    name = "one"


class Job:
    """As much of a job as a ticket is made of."""

    name = "one"
    jobid = 1
    threads = 8
    rule = Rule()
    output = ("/home/me/here/a.txt", "b.txt", "/elsewhere/c.txt")

    def __init__(self, **resources: Any) -> None:
        self.wildcards_dict: dict[str, str] = {}
        self.resources = resources

    def is_group(self) -> bool:
        return False


def ticket_of(job: Any, most: Capacity | None = None) -> Any:
    command = InnerCommand(("true",), None)
    return make_ticket(
        job, command, Choice("command"), "/home/me/here", "me", {}, resources_of(job, most), "same"
    )


def test_resources_come_in_the_units_of_a_ticket() -> None:
    ticket = ticket_of(Job(mem_mb=1000, runtime=2, gpu=1))
    needs = ticket.resources
    assert (needs.cores, needs.memory_mb, needs.gpus, needs.runtime_seconds) == (8, 1000, 1, 120)
    assert ticket.identity == "same"
    assert ticket.outputs == ("a.txt", "b.txt", "/elsewhere/c.txt")


def test_cores_and_memory_are_capped_at_what_the_runs_own_workers_have() -> None:
    needs = ticket_of(Job(mem_mb=1000), Capacity(2, 500)).resources
    assert (needs.cores, needs.memory_mb) == (2, 500)


def test_gpus_that_the_runs_own_workers_lack_are_refused_with_the_rules_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    gpus_of_this_node.cache_clear()
    try:
        assert ticket_of(Job(gpu=2), Capacity(2, 500)).resources.gpus == 2
        with pytest.raises(KochiError, match=r"rule one, resource gpu: 3 GPUs needed.* has 2"):
            ticket_of(Job(gpu=3), Capacity(2, 500))
    finally:
        gpus_of_this_node.cache_clear()
    assert ticket_of(Job(gpu=3)).resources.gpus == 3, "a worker of somebody else may have them"


def test_a_value_that_is_known_only_later_is_left_out() -> None:
    needs = ticket_of(Job(mem_mb="<TBD>", runtime="<TBD>")).resources
    assert (needs.memory_mb, needs.runtime_seconds) == (None, None)


def test_a_resource_that_cannot_be_is_refused_with_the_rules_name() -> None:
    with pytest.raises(KochiError, match=r"rule one, resource runtime: 0 cannot be used"):
        ticket_of(Job(runtime=0))
