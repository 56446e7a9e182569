"""Workers on tickets in allocations: whose run is over, taken over or dead, and requested ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from workers_site import Site, until

from snakemake_kochi.queue.by_hand import note_requested, order_release, reserve_workers
from snakemake_kochi.queue.views import RequestedWorker, find_worker, requested_workers
from snakemake_kochi.tickets.run import Run

ALLOCATED = {"controller": "1", "allocation": "7", "parent": None}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker counts intervals of a fifth of a second; the run gives no sign of life."""
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.2")


def reason(site: Site) -> str:
    left = json.loads(Path(site.layout.worker("1").left).read_text())
    return str(left["reason"])


def test_it_leaves_when_its_run_is_dead(site: Site) -> None:
    site.submit("until test -e go; do sleep 0.05; done")
    worker = site.worker(**ALLOCATED)
    until(site.running)
    until(lambda: find_worker(site.settings().paths, 1).state == "running")
    site.submit("echo also what waits")
    (site.work / "go").touch()
    assert worker.wait(60) == 0
    assert [end.name.state for end in site.collect(2)] == ["success", "success"]
    assert reason(site) == "the run that started it was killed, and it has no job"


def test_it_ends_its_jobs_well_when_another_run_takes_over(site: Site) -> None:
    site.submit("until test -e go; do sleep 0.05; done")
    worker = site.worker(**ALLOCATED)
    until(site.running)
    later = Run.begin(site.layout, str(site.work), is_gone=lambda facts: True)
    assert not later.adopt()
    site.submit_as(later, "echo not for this worker")
    until(lambda: "another run took over" in site.logs())
    (site.work / "go").touch()
    assert worker.wait(60) == 0
    (end,) = later.collect()
    assert (end.name.run, end.name.state) == (1, "success")


def test_requested_workers_have_numbers_before_they_begin(site: Site) -> None:
    paths = site.settings().paths
    assert [*reserve_workers(paths, 2)] == [1, 2]
    assert [*reserve_workers(paths, 1)] == [3]
    for number in (1, 2, 3):
        note_requested(paths, RequestedWorker(number, ["q"], "7", "kochi-x"))
    assert [*requested_workers(paths)] == [1, 2, 3]
    order_release(paths, 2, "finish")
    assert [*requested_workers(paths)] == [1, 3]
    site.begun = 2
    released = site.worker(worker=3)
    assert [*requested_workers(paths)] == [1]
    # One that the scheduler begins again takes another number.
    site.begun = 3
    site.worker(worker=3)
    assert find_worker(paths, 4).state == "running"
    order_release(paths, 3, "finish")
    assert released.wait(60) == 0


def test_one_that_was_released_before_it_begins_takes_no_job(site: Site) -> None:
    paths = site.settings().paths
    (number,) = reserve_workers(paths, 1)
    order_release(paths, number, "finish")
    site.submit("echo")
    assert site.worker(worker=number).wait(60) == 0
    assert reason(site) == "released by kochi release"
    assert site.running() == []
