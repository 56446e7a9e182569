"""A paused batch: its jobs are claimed by no worker until it is resumed; others overtake them."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.paused import PausedBatch, PausedBatches, list_paused, pause
from snakemake_kochi.tickets.ticket import Ticket


@pytest.fixture
def batch(tmp_path: Path) -> PausedBatch:
    return PausedBatch(str(tmp_path), "fib.yaml", "scaling")


def ticket(batch: PausedBatch, name: str = "") -> Ticket:
    labels = {"experiment": batch.experiment, "batch": name or batch.batch}
    return Ticket("job", ("true",), batch.directory, labels=labels)


def test_jobs_of_no_batch_or_of_another_directory_are_not_concerned(
    machine: MachinePaths, batch: PausedBatch, tmp_path: Path
) -> None:
    pause(machine, batch)
    seen = PausedBatches(machine)
    assert seen.has_changed()
    assert not seen.has_changed()
    assert seen.has(ticket(batch))
    elsewhere = PausedBatch(str(tmp_path / "other"), batch.experiment, batch.batch)
    assert not seen.has(ticket(elsewhere))
    assert not seen.has(Ticket("job", ("true",), batch.directory))
    assert [each.batch for each in list_paused(machine)] == ["scaling"]
    # A file of somebody's own, or half of one, pauses nothing and breaks nothing.
    (machine.paused / "notes.json").write_text("{")
    assert [each.batch for each in list_paused(machine)] == ["scaling"]
