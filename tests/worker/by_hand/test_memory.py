"""Limits of memory, and jobs that the kernel killed because memory ran out."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from memory_cage import EATER, LIMIT_MB, Cage

from snakemake_kochi.queue.views import find_worker
from snakemake_kochi.worker.node.capacity import (
    MemoryGroup,
    OomCounts,
    OomWatch,
    memory_mb_for_jobs,
    memory_mb_of_this_node,
    own_memory_group,
)
from snakemake_kochi.worker.runners import Exit

JOB = {"SLURM_JOB_ID": "7"}


@pytest.fixture
def cage() -> Iterator[Cage]:
    with Cage() as made:
        yield made


@pytest.fixture
def start_in_cage(cage: Cage, site) -> Callable[..., object]:
    def start(**settings: object):
        return site.start(**settings, preexec_fn=cage.enter)

    return start


def test_a_job_over_its_memory_limit_is_out_of_memory_and_its_worker_and_neighbour_live(
    site, cage, start_in_cage
):
    neighbour = "echo > ready; while [ ! -e go ]; do sleep 0.1; done; echo finished"
    site.submit(neighbour)
    worker = start_in_cage(stay=True, cores=2)
    site.wait_for("ready")
    assert find_worker(site.machine, 1).capacity.memory_mb == LIMIT_MB
    site.submit(f"exec {EATER}", memory_mb=100)
    result = site.ended(1).result
    assert (result.reason, result.signal) == ("out of memory", signal.SIGKILL)
    said = result.describe()
    assert said.startswith("out of memory: the kernel killed a process in the memory group of 256")
    assert f"oom_kill in {cage.directory}" in said
    assert said.endswith("; the job requested 100 MiB")
    assert worker.poll() is None
    # The kernel kills a child of the job, and the job fails as a consequence.
    site.submit(f"{EATER}; exit 3")
    result = site.ended(2).result
    assert (result.reason, result.exit_status) == ("out of memory", 3)
    assert result.detail.endswith("; the job requested no memory (mem_mb)")
    # Earlier kills do not concern this job.
    site.submit("exit 4", "kill -KILL $$")
    assert site.ended(3).result.describe() == "exit status 4"
    assert site.ended(4).result.describe() == "killed by SIGKILL"
    assert site.job(0).state == "running"
    (site.directory / "go").touch()
    assert site.ended(0).result.ok
    assert site.log(0) == "finished\n"
    worker.terminate()
    assert worker.wait() == 0


def test_a_job_that_survives_the_death_of_a_child_has_not_failed(site, start_in_cage):
    site.submit(f"{EATER}; echo went on")
    assert start_in_cage().wait() == 0
    assert site.job(0).result.ok
    assert "went on" in site.log(0)


def test_a_job_rather_than_its_worker_is_killed(site):
    site.submit("cat /proc/self/oom_score_adj; echo $$ > pid; sleep 1000")
    site.start()
    site.wait_for("pid")
    own = Path(f"/proc/{find_worker(site.machine, 1).process.pid}/oom_score_adj").read_text()
    assert int(site.log(0)) >= 800 > int(own)


def fake_process(directory: Path, cgroup: str, mountinfo: str) -> Path:
    (directory / "cgroup").write_text(cgroup)
    (directory / "mountinfo").write_text(mountinfo)
    return directory


def test_a_group_of_version_2_is_found_with_its_parents(tmp_path):
    mount = tmp_path / "mount"
    own = mount / "slurm" / "job_1" / "step"
    own.mkdir(parents=True)
    process = fake_process(
        tmp_path,
        "0::/slurm/job_1/step\n",
        f"30 23 0:26 / {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    )
    group = own_memory_group(process)
    assert group.directories == (own, own.parent, own.parent.parent, mount)
    assert group.limit_mb() is None
    (own / "memory.max").write_text("max\n")
    (own.parent / "memory.max").write_text(f"{300 * 2**20}\n")
    (own.parent.parent / "memory.max").write_text(f"{500 * 2**20}\n")
    assert group.limit_mb() == 300
    assert group.counter is None
    (own.parent / "memory.events").write_text("low 0\noom 1\noom_kill 2\noom_group_kill 0\n")
    assert group.counter == own.parent / "memory.events"
    assert OomWatch(group).counts().group == 2


def test_a_group_of_version_1_is_found_where_a_container_shows_it(tmp_path):
    mount = tmp_path / "mount"
    (mount / "inner").mkdir(parents=True)
    cgroup = "5:cpu,cpuacct:/docker/abc/inner\n4:memory:/docker/abc/inner\n0::/docker/abc\n"
    process = fake_process(
        tmp_path,
        cgroup,
        f"1 0 0:30 / {tmp_path}/unified rw - cgroup2 cgroup2 rw\n"
        f"2 0 0:31 /docker/abc {tmp_path}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"3 0 0:32 /docker/abc {mount} rw - cgroup cgroup rw,memory\n",
    )
    group = own_memory_group(process)
    assert group.directories == (mount / "inner", mount)
    (mount / "memory.limit_in_bytes").write_text(f"{2**30}\n")
    (mount / "inner" / "memory.oom_control").write_text("oom_kill_disable 0\noom_kill 1\n")
    assert group.limit_mb() == 1024
    assert OomWatch(group).counts().group == 1


def test_where_there_are_no_memory_groups_there_is_no_limit(tmp_path):
    assert own_memory_group(tmp_path) == MemoryGroup(())
    outside = fake_process(tmp_path, "0::/../other\n", "3 0 0:3 / /x rw - cgroup2 cgroup2 rw\n")
    assert own_memory_group(outside).limit_mb() is None
    assert MemoryGroup(()).counter is None


def test_the_lowest_memory_limit_counts():
    everything = memory_mb_of_this_node({})
    assert memory_mb_of_this_node({**JOB, "SLURM_MEM_PER_NODE": "12"}) == 12
    assert memory_mb_of_this_node({**JOB, "SLURM_MEM_PER_NODE": "999999999"}) == everything
    assert memory_mb_of_this_node({**JOB, "SLURM_MEM_PER_NODE": "0"}) == everything
    assert memory_mb_of_this_node({**JOB, "SLURM_MEM_PER_NODE": "12G"}) == everything
    of_cores = {**JOB, "SLURM_MEM_PER_CPU": "12", "SLURM_CPUS_ON_NODE": "3"}
    assert memory_mb_of_this_node(of_cores) == 36
    assert memory_mb_of_this_node(of_cores | {"SLURM_MEM_PER_CPU": "0"}) == everything
    assert memory_mb_of_this_node({**JOB, "SLURM_MEM_PER_CPU": "12"}) == everything


def test_the_worker_keeps_a_share_of_the_memory_that_slurm_granted():
    everything = memory_mb_of_this_node({})
    assert memory_mb_for_jobs({}) == everything
    allocation = {**JOB, "SLURM_MEM_PER_NODE": "1312"}
    assert memory_mb_for_jobs(allocation) == 800
    assert memory_mb_for_jobs(allocation, most=650) == 650
    # A job that requests all memory of a node gets it.
    assert memory_mb_for_jobs(allocation, most=1312) == 1312
    assert memory_mb_for_jobs(allocation, most=2000) == 1312
    assert memory_mb_for_jobs({**JOB, "SLURM_MEM_PER_NODE": "300"}) == 150
    assert memory_mb_for_jobs({**JOB, "SLURM_MEM_PER_NODE": "0"}) == everything


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (Exit(None, signal.SIGKILL), "rose from 3 to 4"),
        (Exit(137, None), "rose from 3 to 4"),
        (Exit(1, None), None),
        (Exit(None, signal.SIGSEGV), None),
    ],
)
def test_the_counter_of_the_node_concerns_only_killed_jobs(tmp_path, end, said):
    counters = tmp_path / "vmstat"
    counters.write_text("nr_free_pages 1\noom_kill 3\npswpin 0\n")
    watch = OomWatch(MemoryGroup(()), counters)
    before = watch.counts()
    assert before == OomCounts(None, 3)
    assert watch.explain(before, end) is None
    counters.write_text("nr_free_pages 1\noom_kill 4\npswpin 0\n")
    found = watch.explain(before, end)
    assert (found is None) if said is None else (said in found and str(counters) in found)


def test_without_counters_a_kill_is_just_a_kill(tmp_path):
    watch = OomWatch(MemoryGroup(()), tmp_path / "missing")
    assert watch.explain(watch.counts(), Exit(None, signal.SIGKILL)) is None
