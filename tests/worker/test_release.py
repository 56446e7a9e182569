"""A worker that a person releases: it finishes its jobs, or requeues them, on whatever node."""

from __future__ import annotations

from snakemake_kochi.queue import allocate_ids, find_worker, order_release


def test_a_released_worker_takes_no_more_jobs_and_leaves_when_its_own_have_ended(site):
    worker = site.start(stay=True)
    site.submit("echo there > first; while [ ! -e go-on ]; do sleep 0.05; done; echo done")
    site.wait_for("first")
    order_release(site.machine, 0, "finish")
    site.wait_until(lambda: find_worker(site.machine, 0).state == "finishing")
    site.submit("true")
    (site.directory / "go-on").touch()
    assert worker.wait() == 0
    assert site.job(0).result.ok
    assert site.log(0) == "done\n"
    assert site.job(1).state == "waiting"
    left = find_worker(site.machine, 0)
    assert (left.state, left.reason) == ("left", "released by kochi release")


def test_one_that_is_to_leave_now_puts_its_jobs_back_also_if_it_was_to_finish_them(site):
    worker = site.start(stay=True)
    site.submit("echo there > first; sleep 1000")
    site.wait_for("first")
    order_release(site.machine, 0, "finish")
    site.wait_until(lambda: find_worker(site.machine, 0).state == "finishing")
    order_release(site.machine, 0, "now")
    assert worker.wait() == 0
    assert (site.job(0).state, site.job(0).attempt) == ("waiting", 2)
    assert find_worker(site.machine, 0).state == "left"


def test_a_worker_on_another_node_finds_the_order_in_a_file(site):
    worker = site.start_elsewhere(stay=True, idle_wait=0.2)
    site.wait_until(lambda: site.machine.worker(0).state.exists())
    # No wake-up FIFO can reach it there.
    site.machine.worker(0).wakeup.unlink(missing_ok=True)
    order_release(site.machine, 0, "finish")
    assert worker.wait() == 0
    assert find_worker(site.machine, 0).reason == "released by kochi release"


def test_one_that_was_released_before_it_came_leaves_at_once(site):
    (number,) = allocate_ids(site.machine, "worker", 1)
    site.machine.worker(number).directory.mkdir(parents=True, mode=0o700)
    order_release(site.machine, number, "now")
    site.submit("true")
    assert site.start(stay=True, worker=number, queues=("q",)).wait() == 0
    assert site.job(0).state == "waiting"


def test_a_worker_whose_allocation_begins_again_gets_another_number(site):
    (number,) = allocate_ids(site.machine, "worker", 1)
    for _ in range(2):
        worker = site.start(worker=number, queues=("q",), allocation="12")
        assert worker.wait() == 0
    assert [find_worker(site.machine, each).state for each in range(2)] == ["left"] * 2
