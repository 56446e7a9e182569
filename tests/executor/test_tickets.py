"""The resources of a Snakemake job in its ticket."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.admission import resources_of
from snakemake_kochi.executor.tickets import outputs_of
from snakemake_kochi.schedulers.resources import read_request


class Rule:
    name = "one"


class Job:
    """The parts of a job that its ticket needs."""

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


def test_resources_are_converted_to_the_units_of_a_ticket() -> None:
    needs = resources_of(Job(mem_mb=1000, runtime=2, gpu=1))
    assert (needs.cores, needs.memory_mb, needs.gpus, needs.runtime_seconds) == (8, 1000, 1, 120)


def test_outputs_below_the_working_directory_are_relative_to_it() -> None:
    assert outputs_of(Job(), "/home/me/here") == ("a.txt", "b.txt", "/elsewhere/c.txt")


def test_a_value_that_is_not_known_yet_is_omitted() -> None:
    needs = resources_of(Job(mem_mb="<TBD>", runtime="<TBD>"))
    assert (needs.memory_mb, needs.runtime_seconds) == (None, None)


def test_an_invalid_resource_is_refused_with_the_rules_name() -> None:
    with pytest.raises(KochiError, match=r"rule one, resource runtime: -1 cannot be used"):
        resources_of(Job(runtime=-1))
    with pytest.raises(KochiError, match=r"rule one, resource mem_mb: inf cannot be used"):
        resources_of(Job(mem_mb=float("inf")))


def test_a_resource_that_is_zero_is_as_if_it_were_not_given() -> None:
    values = {"runtime": 0, "gpu": 0, "nodes": 0, "tasks": 0, "cpus_per_task": 0, "disk_mb": 0}
    job = Job(mem_mb=0, **values)
    assert resources_of(job) == replace(resources_of(Job()), memory_mb=0)
    asked = read_request("one", job.resources, resources_of(job))
    assert asked == read_request("one", {}, resources_of(job))


def test_an_amount_may_be_a_text_as_in_profiles() -> None:
    needs = resources_of(Job(mem_mb="1000", gpu="1", runtime=""))
    assert (needs.memory_mb, needs.gpus, needs.runtime_seconds) == (1000, 1, None)
    with pytest.raises(KochiError, match=r"rule one, resource gpu: two cannot be used: a number"):
        resources_of(Job(gpu="two"))
