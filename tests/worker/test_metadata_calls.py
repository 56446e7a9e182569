"""How many calls to a file server a short job costs its worker."""

from __future__ import annotations

import json
from collections import Counter

from snakemake_kochi.queue import Inbox
from tests.worker.conftest import Site

# Counts the calls that name a file of a job, of the queue or of its controller, by their kinds.
# What a worker does by the clock, below workers/, does not depend on the number of jobs.
COUNT = """
import json, os, sys
from collections import Counter
counts = Counter()
def note(call, path):
    if not isinstance(path, int) and any(
        f"/{part}/" in os.fspath(path) for part in ("jobs", "queues", "controllers", "locks", "fd")
    ):
        counts["lock" if "/locks/queue-" in os.fspath(path) else call] += 1
def hear(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rmdir",
                 "os.rename", "os.link"):
        note(event, arguments[0])
sys.addaudithook(hear)
stat = os.stat
def counted(path, *arguments, **options):
    note("stat", path)
    return stat(path, *arguments, **options)
os.stat = counted
end = os._exit
def write_and_end(status):
    with open(f"counts-{os.getpid()}", "w") as file:
        file.write(json.dumps(counts))
    end(status)
os._exit = write_and_end  # by which the worker ends, a child of its supervisor
"""
JOBS = 100


def test_a_short_job_costs_few_calls(site: Site) -> None:
    inbox = Inbox.create(site.machine)
    site.submit(*["true"] * JOBS, controller=inbox.identity)
    worker = site.start_changed(COUNT, cores=2, between_jobs=0.0, cwd=site.directory)
    assert worker.wait() == 0
    assert len(inbox.wait(0)) == JOBS
    inbox.close()
    files = site.directory.glob("counts-*")
    counts = max((Counter(json.loads(each.read_text())) for each in files), key=Counter.total)
    per_job = {call: number / JOBS for call, number in counts.items()}
    # The directory of the job; the ticket, the log, the attempt and a FIFO, which are opened; the
    # claim and the ticket, which are renamed; the links that publish and deliver the result. The
    # rest is for a claim, of several tickets.
    assert per_job["os.mkdir"] < 1.1, per_job
    assert per_job["os.link"] < 2.1, per_job
    assert per_job["os.rename"] < 2.2, per_job
    assert per_job.get("os.remove", 0) < 0.2, per_job
    assert per_job["open"] < 4.4, per_job
    assert per_job.get("os.listdir", 0) < 0.6, per_job
    assert counts.total() / JOBS < 15, per_job
