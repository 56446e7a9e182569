"""What is known of jobs that live, and of those that have ended."""

from __future__ import annotations

import os
from pathlib import Path

from workers_site import QUEUE, Site, until

from snakemake_kochi.tickets.history import ended, find, living, log_of
from snakemake_kochi.tickets.names import Name
from snakemake_kochi.tickets.run import End


def states(site: Site) -> dict[str, str]:
    views = [*living(site.layout), *ended(site.layout)]
    return {f"{view.name.run}.{view.name.job}": view.state for view in views}


def test_states_of_jobs_from_submission_to_the_journal(site: Site) -> None:
    site.submit("until test -e go; do sleep 0.01; done; exit 3", labels={"rule": "one"})
    site.submit("echo two")
    assert states(site) == {"1.1": "waiting", "1.2": "waiting"}
    site.worker(cores=1)
    until(site.running)
    assert states(site) == {"1.1": "running", "1.2": "waiting"}
    view = find(site.layout, 1, 1)
    assert view is not None
    assert (view.queue, view.ticket["labels"]) == (QUEUE, {"rule": "one"})
    (site.work / "go").touch()
    inbox = Path(site.run.paths.inbox)
    until(lambda: len(os.listdir(inbox)) == 2)
    assert find(site.layout, 1, 1).state == "failed"
    site.collect(2)
    assert states(site) == {"1.1": "failed", "1.2": "success"}
    view = find(site.layout, 1, 1)
    assert view is not None
    assert (view.queue, view.ticket["labels"]) == (QUEUE, {"rule": "one"})
    assert view.line["details"]["exit_status"] == 3
    assert [str(view.name) for view in ended(site.layout, states=["failed"])] == [
        "1.1.a1.l0@1=failed"
    ]
    assert find(site.layout, 1, 3) is None
    assert find(site.layout, 7, 1) is None


def test_logs_are_folded_when_nothing_is_open(site: Site) -> None:
    site.worker()
    site.submit(*(f"echo {number}; exit {number % 2}" for number in range(6)))
    ends: list[End] = []
    while site.run.open:
        site.run.fold()
        ends += site.collect()
    assert len(os.listdir(site.run.paths.logs)) == 6
    site.run.fold()
    assert os.listdir(site.run.paths.logs) == []
    assert len(os.listdir(site.run.paths.folded)) == 1
    for end in ends:
        assert (
            log_of(site.run.paths, end.name)
            == end.key.split()[1].removesuffix(";").encode() + b"\n"
        )
    assert log_of(site.run.paths, Name(1, 9)) is None
