"""How long a worker with empty queues waits for a run that uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support import REPOSITORY

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import Capacity, Inbox, WorkerState, assign_queues
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.worker.queues import ServedQueues
from snakemake_kochi.worker.settings import BETWEEN_JOBS
from snakemake_kochi.worker.state import StateFile


@pytest.fixture
def machine(tmp_path: Path) -> MachinePaths:
    return Root(tmp_path).machine("local")


@pytest.fixture
def served(machine: MachinePaths) -> ServedQueues:
    """The queue "q" of a worker."""
    assign_queues(machine, 0, ["q"])
    state = WorkerState(
        0, "running", ProcessIdentity(1, 1), this_node(), ("q",), Capacity(1, 0), now(), now()
    )
    found = ServedQueues(machine, StateFile(machine, state))
    found.read()
    return found


def test_a_worker_without_jobs_waits_for_longer_than_snakemake_does_for_outputs() -> None:
    profile = yaml.safe_load((REPOSITORY / "profiles" / "cluster" / "config.yaml").read_text())
    assert profile["latency-wait"] < BETWEEN_JOBS


def test_a_queue_is_used_by_a_run_that_submitted_jobs_to_it(
    machine: MachinePaths, served: ServedQueues
) -> None:
    assert not served.are_used()
    inbox = Inbox.create(machine, "/")
    inbox.note_queue("other")
    assert not served.are_used()
    inbox.note_queue("q")
    assert served.are_used()
    inbox.close()
    assert not served.are_used()


def test_a_queue_may_be_used_by_a_run_that_names_no_queues(
    machine: MachinePaths, served: ServedQueues
) -> None:
    inbox = Inbox.create(machine, "/")
    path = machine.controller(inbox.identity).state
    path.write_text(json.dumps({**json.loads(path.read_text()), "queues": None}))
    assert served.are_used()
    inbox.close()


def test_a_queue_may_be_used_while_the_filesystem_does_not_answer(
    machine: MachinePaths, served: ServedQueues
) -> None:
    assert not served.are_used()
    # The directory cannot be listed; the error differs from that of a missing directory.
    machine.controllers.symlink_to(machine.controllers)
    assert served.are_used()
