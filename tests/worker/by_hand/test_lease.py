"""Workers whose machine uses leases, which a thread renews, instead of flock."""

from __future__ import annotations

import signal

from snakemake_kochi.locks import settle_locks


def test_a_worker_that_is_told_to_stop_puts_its_job_back(site):
    settle_locks(site.machine, kind="lease")
    site.submit("echo begun > begun; exec sleep 1000")
    worker = site.start()
    site.wait_for("begun")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert site.job(0).state == "waiting"
    assert list(site.machine.locks.directory.iterdir()) == []
