"""Each job has its own CPUs and GPUs, and no two jobs share one."""

from __future__ import annotations

import errno
import multiprocessing
import os

import pytest

from snakemake_kochi.cpu_lists import format_cpus
from snakemake_kochi.errors import WorkerError
from snakemake_kochi.queue.views import find_worker
from snakemake_kochi.tickets.ticket import Resources
from snakemake_kochi.worker.node.capacity import CUDA, HIP, ROCR, Gpus, find_gpus
from snakemake_kochi.worker.node.devices import (
    CpuLeases,
    Devices,
    choose_cpus,
    layout_of,
)

CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        ({0, 1, 2, 3, 4, 5, 6, 7}, 2, (0, 2)),
        ({0, 1, 2, 3, 4, 5, 6, 7}, 4, (0, 2, 4, 6)),
        ({0, 4, 6, 1, 3, 5, 7}, 2, (4, 6)),  # neighbours, and the gap that is just large enough
        ({0, 4, 1, 3, 7}, 2, (1, 3)),
        ({0, 6, 1, 7}, 2, (0, 6)),  # no neighbours, but one socket
        ({0, 1, 3, 5, 7}, 5, (0, 1, 3, 5, 7)),
        ({0, 2, 1, 3, 5, 7}, 5, (0, 1, 3, 5, 7)),  # as few sockets as can be
        ({0, 1}, 3, None),
    ],
)
def test_the_cpus_of_a_job_are_neighbours_on_one_socket(free, count, chosen):
    assert choose_cpus(((0, 2, 4, 6), (1, 3, 5, 7)), free, count) == chosen


def test_the_kernel_tells_the_sockets(tmp_path):
    for cpu, socket in {0: 0, 1: 1, 2: 0, 10: 1}.items():
        directory = tmp_path / f"cpu{cpu}" / "topology"
        directory.mkdir(parents=True)
        (directory / "physical_package_id").write_text(f"{socket}\n")
    assert layout_of([10, 2, 1, 0], tmp_path) == ((0, 2), (1, 10))
    assert layout_of([3, 1], tmp_path / "unknown") == ((1, 3),)
    assert sorted(cpu for socket in layout_of(CPUS) for cpu in socket) == CPUS


def test_cpus_have_the_format_of_taskset():
    assert format_cpus([8, 0, 1, 2, 3, 10]) == "0-3,8,10"
    assert format_cpus([]) == ""


def _hold(path, cpus, held, release):
    leases = CpuLeases(path)
    assert leases.take(cpus) == []
    held.set()
    release.wait()
    os._exit(0)  # as abruptly as a process can end by itself


def test_cpus_that_another_process_holds_are_not_taken_until_it_ends(tmp_path):
    path = tmp_path / "cpus"
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(path, [2, 3], held, release))
    other.start()
    held.wait()
    leases = CpuLeases(path)
    try:
        assert leases.take([0, 1, 2]) == [2]
        assert leases.take([3]) == [3]
        devices = Devices(4, ((0, 1, 2, 3),), Gpus(), leases)
        assert devices.allot(Resources(cores=2)).pinned == {0, 1}, "none of them is held for it"
        assert devices.allot(Resources(cores=1)).pinned is None, "it does not wait"
    finally:
        release.set()
        other.join()
    assert devices.allot(Resources(cores=2)).pinned == {2, 3}
    leases.close()


class NoLeases(CpuLeases):
    def take(self, cpus):
        raise OSError(errno.ENOLCK, "No locks available")


def test_without_locks_nothing_is_pinned_and_one_notice_says_so(tmp_path, caplog):
    devices = Devices(4, ((0, 1, 2, 3),), Gpus(), NoLeases(tmp_path / "x"))
    for _ in range(2):
        allotment = devices.allot(Resources(cores=1))
        assert (allotment.pinned, allotment.environment["KOCHI_CPUS"]) == (None, "0-3")
        devices.release(allotment)
    assert caplog.text.count("not pinned") == 1


def test_released_devices_are_handed_out_again_and_never_twice(tmp_path):
    leases = CpuLeases(tmp_path / "host.cpus")
    devices = Devices(4, ((0, 1, 2, 3),), Gpus(("0", "1", "2")), leases)
    one = devices.allot(Resources(cores=1, gpus=2))
    two = devices.allot(Resources(cores=2, gpus=1))
    assert (one.pinned, one.gpus) == ({0}, ("0", "1"))
    assert (two.pinned, two.gpus) == ({1, 2}, ("2",))
    assert one.environment == {"KOCHI_CPUS": "0", "KOCHI_GPUS": "0,1", CUDA: "0,1"}
    none = devices.allot(Resources(cores=1))
    assert none.environment == {"KOCHI_CPUS": "3", "KOCHI_GPUS": "", CUDA: ""}
    devices.release(two)
    devices.release(one)
    devices.release(none)
    alone = devices.allot(Resources(exclusive=True))
    assert (alone.pinned, alone.gpus) == (None, ("0", "1", "2"))
    assert alone.environment == {"KOCHI_CPUS": "0-3", "KOCHI_GPUS": "0,1,2", CUDA: "0,1,2"}
    devices.release(alone)
    assert devices.allot(Resources(cores=3, gpus=3)).pinned == {0, 1, 2}
    leases.close()


LIST = "GPU 0: NVIDIA A100 (UUID: GPU-aaaa-01)\n  MIG 1g.5gb Device 0: (UUID: MIG-x)\n"
LIST += "GPU 1: NVIDIA A100 (UUID: GPU-bbbb-02)\n"


@pytest.mark.parametrize(
    ("environment", "listed", "expected"),
    [
        ({}, "", Gpus()),
        ({}, LIST, Gpus(("GPU-aaaa-01", "GPU-bbbb-02"))),
        ({CUDA: "2, GPU-cc"}, LIST, Gpus(("2", "GPU-cc"))),
        ({CUDA: "1,-1,0"}, LIST, Gpus(("1",))),
        ({CUDA: ""}, LIST, Gpus()),
        ({CUDA: "NoDevFiles"}, LIST, Gpus()),
        ({HIP: "0,1"}, LIST, Gpus(("0", "1"), (CUDA, HIP))),
        ({CUDA: "1", HIP: "0,1"}, LIST, Gpus(("1",), (CUDA, HIP))),
        ({ROCR: "4,5", HIP: "0,1"}, LIST, Gpus(("4", "5"), (ROCR,))),
    ],
)
def test_the_gpus_are_those_that_the_environment_or_the_driver_names(environment, listed, expected):
    assert find_gpus(None, environment, ["printf", "%s", listed]) == expected


def test_a_driver_that_fails_or_is_not_there_means_no_gpu():
    assert find_gpus(None, {}, ["sh", "-c", f"echo '{LIST}'; exit 9"]) == Gpus()
    assert find_gpus(None, {}, ["no-such-command"]) == Gpus()


def test_a_person_can_name_the_gpus_or_their_number():
    environment = {CUDA: "4,5,6"}
    assert find_gpus("2", environment).names == ("4", "5")
    assert find_gpus("0", environment).names == ()
    assert find_gpus("7,GPU-a-1", environment).names == ("7", "GPU-a-1")
    assert find_gpus("3,", environment).names == ("3",)
    assert find_gpus("2", {CUDA: ""}).names == ("0", "1"), "a person knows better"
    with pytest.raises(WorkerError, match=r"--gpus 4: this node shows 3 GPUs \(4, 5, 6\)"):
        find_gpus("4", environment)
    for wrong in ("", "a", "1,1", "-1", "1;2", ","):
        with pytest.raises(WorkerError, match="a number of GPUs was expected"):
            find_gpus(wrong, environment)


def test_jobs_get_variables_with_their_devices(site):
    show = "echo $KOCHI_GPUS/$CUDA_VISIBLE_DEVICES/${{HIP_VISIBLE_DEVICES-unset}}/$KOCHI_CPUS; "
    show += "touch here{0}; while [ ! -e here{1} ]; do sleep 0.1; done"
    site.submit(show.format(0, 1), show.format(1, 0), gpus=1)
    site.submit(show.format(2, 2), gpus=2)
    site.submit(show.format(3, 3))
    site.submit(show.format(4, 4), exclusive=True)
    site.submit(show.format(5, 5), gpus=3)
    environment = {**os.environ, CUDA: "7,GPU-b"}
    environment.pop(HIP, None)
    assert site.start(cores=200, env=environment).wait() == 0
    all_cpus = format_cpus(CPUS)
    logs = [site.log(job) for job in range(5)]
    # The first two begin at the same moment.
    assert [*sorted(logs[:2]), *logs[2:]] == [
        f"7/7/unset/{all_cpus}\n",
        f"GPU-b/GPU-b/unset/{all_cpus}\n",
        f"7,GPU-b/7,GPU-b/unset/{all_cpus}\n",
        f"//unset/{all_cpus}\n",
        f"7,GPU-b/7,GPU-b/unset/{all_cpus}\n",
    ]
    assert site.job(5).state == "waiting"
    assert find_worker(site.machine, 1).capacity.gpus == 2


def cpus_of(pid: str) -> list[int]:
    return sorted(os.sched_getaffinity(int(pid)))


needs_two = f"this test needs two CPUs, and may use {format_cpus(CPUS)}"


def test_two_jobs_and_their_children_have_different_cpus(site):
    assert len(CPUS) > 1, needs_two
    script = "sleep 1000 & echo $! $KOCHI_CPUS > here{0}; wait"
    site.submit(script.format(0), script.format(1))
    site.start(grace=0.2)
    seen = []
    for name in ("here0", "here1"):
        pid, told = site.wait_for(name).split()
        seen.append(cpus_of(pid))
        assert told == format_cpus(seen[-1])
    assert [len(cpus) for cpus in seen] == [1, 1]
    assert seen[0] != seen[1]
    assert {*seen[0], *seen[1]} <= set(CPUS)


def test_an_exclusive_job_and_a_job_with_all_cores_have_all_cpus(site):
    site.submit("nproc; echo $KOCHI_CPUS", exclusive=True)
    site.submit("nproc; echo $KOCHI_CPUS", cores=len(CPUS))
    assert site.start().wait() == 0
    assert site.log(0) == site.log(1) == f"{len(CPUS)}\n{format_cpus(CPUS)}\n"


def test_two_workers_on_a_node_share_no_cpu_and_a_killed_worker_holds_none(site):
    assert len(CPUS) > 1, needs_two
    mask = set(CPUS[:2])
    script = "echo $KOCHI_CPUS > {0}; while [ ! -e go ]; do sleep 0.1; done"

    def start(name: str):
        site.submit(script.format(name), queue=name)
        return site.start(
            stay=True, queues=(name,), preexec_fn=lambda: os.sched_setaffinity(0, mask)
        )

    workers = [start("a"), start("b")]
    cpus = [site.wait_for(name).strip() for name in ("a", "b")]
    assert sorted(cpus) == sorted(map(str, mask))
    start("c")
    assert site.wait_for("c").strip() == format_cpus(mask), "none is free: it is not pinned"
    for worker in workers:
        worker.kill()
        worker.wait()
    site.wait_until(lambda: find_worker(site.machine, 1).is_lost)
    site.wait_until(lambda: find_worker(site.machine, 2).is_lost)
    start("d")
    assert site.wait_for("d").strip() in cpus
    (site.directory / "go").touch()
