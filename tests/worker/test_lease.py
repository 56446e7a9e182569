"""Workers whose machine uses leases, which a thread renews, instead of flock."""

from __future__ import annotations

import signal

from snakemake_kochi.locks import settle_locks


def test_jobs_run_beside_each_other_and_no_lease_is_left(site):
    settle_locks(site.machine, kind="lease")
    site.submit(*[f"echo {number} > done-{number}" for number in range(8)])
    worker = site.start(cores=3, echo=True)
    output, _ = worker.communicate()
    assert worker.returncode == 0, output
    assert [site.ended(number).result.reason for number in range(8)] == ["success"] * 8
    assert all((site.directory / f"done-{number}").exists() for number in range(8))
    assert list(site.machine.locks.directory.iterdir()) == []
    log = site.machine.worker(0).log.read_text()
    assert "taken away" not in log and "still waiting" not in log


def test_the_job_of_a_killed_worker_is_done_by_the_next(site):
    settle_locks(site.machine, kind="lease")
    site.submit("echo $KOCHI_ATTEMPT >> attempts; [ $KOCHI_ATTEMPT = 2 ] || exec sleep 1000")
    killed = site.start()
    site.wait_for("attempts")
    site.kill_worker(killed)
    assert site.start().wait(60) == 0
    assert (site.ended(0).result.reason, site.ended(0).attempt) == ("success", 2)
    assert (site.directory / "attempts").read_text() == "1\n2\n"
    assert list(site.machine.locks.directory.iterdir()) == []


def test_a_worker_that_is_told_to_stop_puts_its_job_back(site):
    settle_locks(site.machine, kind="lease")
    site.submit("echo begun > begun; exec sleep 1000")
    worker = site.start()
    site.wait_for("begun")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert site.job(0).state == "waiting"
    assert list(site.machine.locks.directory.iterdir()) == []
