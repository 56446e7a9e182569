"""A worker on a node on which everything fails is set aside; the failures do not count."""

from __future__ import annotations

import os

from snakemake_kochi.queue.views import find_worker
from tests.worker.by_hand.conftest import Site


def test_a_worker_whose_node_cannot_write_temporary_files_is_set_aside(site: Site) -> None:
    temporary = site.directory / "temporary"
    temporary.mkdir()
    site.submit("[ -e failed ] || { echo > failed; rm -r $TMPDIR; exit 1; }")
    worker = site.start(cores=1, stay=True, env={**os.environ, "TMPDIR": str(temporary)})
    assert worker.wait() == 1
    assert (site.job(0).state, site.job(0).attempt) == ("waiting", 2)
    (attempt,) = site.job(0).attempts
    why = f"cannot write below {temporary}: No such file or directory"
    assert attempt.describe() == f"node failed: {why}"
    assert find_worker(site.machine, 1).reason == f"set aside: this node {why}"
    assert site.start().wait() == 0
    assert site.job(0).result.ok  # type: ignore[union-attr]


def test_a_job_ends_that_three_nodes_could_not_execute(site: Site) -> None:
    temporary = site.directory / "temporary"
    site.submit("rm -r $TMPDIR; exit 1")
    for _ in range(3):
        assert site.job(0).state == "waiting"
        temporary.mkdir()
        worker = site.start(cores=1, stay=True, env={**os.environ, "TMPDIR": str(temporary)})
        assert worker.wait() == 1
    result = site.job(0).result
    assert result is not None
    why = f"cannot write below {temporary}: No such file or directory"
    said = f"begun 3 times; the last node could not execute it: {why}"
    assert (result.describe(), result.attempt) == (f"node failed: {said}", 3)


def test_a_removed_directory_is_not_the_nodes_fault(site: Site) -> None:
    site.submit("", directory=site.directory / "removed" / "below")
    site.submit("true")
    assert site.start(cores=1).wait() == 0
    assert site.job(0).result.exit_status == 126  # type: ignore[union-attr]
    assert site.job(1).result.ok  # type: ignore[union-attr]


def test_the_removed_last_entry_of_a_directory_is_not_the_nodes_fault(site: Site) -> None:
    place = site.directory / "experiments"
    (place / "one").mkdir(parents=True)
    site.submit("true", directory=place / "one")
    site.submit("true")
    (place / "one").rmdir()
    assert site.start(cores=1).wait() == 0
    assert [site.job(n).result.describe() for n in (0, 1)] == ["exit status 126", "succeeded"]  # type: ignore[union-attr]


def test_a_worker_goes_on_while_jobs_fail_everywhere(site: Site) -> None:
    site.submit(*["exit 1"] * 15)
    assert site.start(cores=1).wait() == 0
    assert [site.job(n).result.describe() for n in range(15)] == ["exit status 1"] * 15  # type: ignore[union-attr]
