"""The number and the size of requested workers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snakemake_kochi.allocation.packing import PATIENCE, Supply, few_kinds, not_wanted, obstacle
from snakemake_kochi.allocation.sizing import Shape, workers_to_request
from snakemake_kochi.schedulers.interface import Limits
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.ticket import Resources
from snakemake_kochi.worker.node.capacity import OWN_MB
from snakemake_kochi.worker.settings import START_AND_END

NODE = Capacity(8, 16_000, 2)
FOR_JOBS = Capacity(8, 16_000 - OWN_MB, 2)  # beside the worker


def request_all(waiting, supply=(), workers=4, **limits):
    return workers_to_request(waiting, supply, Limits(workers, NODE, **limits))


def request(waiting, supply=(), workers=4, **limits):
    """For a request that one submission satisfies."""
    found = request_all(waiting, supply, workers, **limits)
    assert len(found) <= 1
    return found[0] if found else None


def test_nothing_is_requested_without_waiting_jobs():
    assert request({}) is None


def test_one_small_job_gets_a_worker_of_its_size():
    assert request({Resources(cores=2, memory_mb=500): 1}) == (Shape(Capacity(2, 500, 0)), 1)


def test_many_small_jobs_are_shared_out_among_as_many_workers_as_there_may_be():
    assert request({Resources(): 12}) == (Shape(Capacity(3, 0, 0)), 4)


def test_more_jobs_than_there_is_room_for_get_the_most_that_may_be_requested():
    assert request({Resources(): 10_000}) == (Shape(Capacity(8, 0, 0)), 4)


def test_existing_and_requested_workers_are_not_requested_again():
    supply = [Supply(Capacity(8, 16_000, 0))]
    assert request({Resources(): 8}, supply) is None
    assert request({Resources(): 10}, supply) == (Shape(Capacity(1, 0, 0)), 2)


def test_a_job_that_fits_no_existing_worker_gets_one_of_its_own():
    supply = [Supply(Capacity(2, 16_000, 0))]
    assert request({Resources(cores=4): 1}, supply) == (Shape(Capacity(4, 0, 0)), 1)


def test_a_job_that_takes_longer_than_existing_workers_last_gets_one_of_its_own():
    supply = [Supply(Capacity(8, 16_000, 0), seconds_left=100.0)]
    assert request({Resources(runtime_seconds=90): 1}, supply) is None
    shape, count = request({Resources(runtime_seconds=110): 1}, supply)
    assert count == 1
    assert shape.seconds is not None and shape.seconds >= 110


def test_a_benchmark_that_wants_to_be_alone_gets_a_whole_node():
    waiting = {Resources(exclusive=True): 3}
    assert request(waiting) == (Shape(FOR_JOBS, whole_node=True), 3)
    assert request(waiting, [Supply(NODE)] * 2) == (Shape(FOR_JOBS, whole_node=True), 1)
    # Except for a job that takes the whole node.
    waiting = {Resources(exclusive=True, memory_mb=16_000): 1}
    assert request(waiting) == (Shape(NODE, whole_node=True), 1)


@pytest.mark.parametrize(
    ("waiting", "cores", "memory"),
    [
        ({Resources(memory_mb=100): 1000}, 8, 800),
        ({Resources(memory_mb=100): 3}, 1, 100),
        ({Resources(memory_mb=200): 12, Resources(): 1000}, 8, 600),
        ({Resources(memory_mb=5000): 1000}, 3, 15_000),
        ({Resources(memory_mb=5160): 1000}, 3, 15_480),
        ({Resources(memory_mb=5000): 1000, Resources(): 9}, 6, 16_000 - OWN_MB),
        ({Resources(memory_mb=15_800): 1000}, 1, 15_800),
    ],
)
def test_memory_is_requested_for_the_jobs_that_run_at_the_same_time(waiting, cores, memory):
    shape, _ = request(waiting)
    assert (shape.capacity.cores, shape.capacity.memory_mb) == (cores, memory)


def test_gpus_and_memory_are_requested_as_cores_are():
    shape, count = request({Resources(gpus=1, memory_mb=9000): 3})
    assert (shape.capacity, count) == (Capacity(1, 9000, 1), 3)


def test_a_worker_is_requested_for_the_time_that_all_its_jobs_need():
    assert request({Resources(cores=8, runtime_seconds=600): 1})[0].seconds == 600 + START_AND_END
    # Eight in a row on each of four workers.
    many = {Resources(cores=8, runtime_seconds=600): 32}
    assert request(many)[0].seconds == 8 * 600 + START_AND_END
    assert request(many, seconds=1800.0)[0].seconds == 1800


def test_a_job_that_no_worker_can_run_is_named_with_its_limit_and_not_requested():
    limits = Limits(4, NODE, seconds=3600.0)
    assert obstacle(Resources(cores=9), limits) == "9 cores needed, 8 available"
    assert obstacle(Resources(runtime_seconds=3601), limits) is not None
    # If time cannot be added, the start of a worker is taken from the job's time.
    assert obstacle(Resources(runtime_seconds=3600), limits) is None
    [(shape, _)] = workers_to_request({Resources(runtime_seconds=3600): 1}, [], limits)
    assert shape.seconds == 3600
    assert workers_to_request({Resources(cores=9): 5}, [], limits) == []


def test_running_jobs_leave_less_of_a_worker_for_others():
    busy = Supply(NODE, begun=(Resources(cores=6, memory_mb=1000, gpus=1),))
    assert request({Resources(cores=2): 1}, [busy]) is None
    assert request({Resources(cores=3): 1}, [busy]) == (Shape(Capacity(3, 0, 0)), 1)
    # An exclusive job does not begin beside others, nor others beside it.
    assert request({Resources(exclusive=True): 1}, [busy]) is not None
    assert request({Resources(): 1}, [Supply(NODE, begun=(Resources(exclusive=True),))]) is not None


MINUTE, LARGE = Resources(memory_mb=50, runtime_seconds=60), Resources(1, False, 3400, 0, 60)
TEN_HOURS = Resources(memory_mb=50, runtime_seconds=36_000)


def test_short_jobs_run_one_after_the_other():
    shape, count = request({MINUTE: 40})
    assert shape.capacity.cores * count * PATIENCE >= 40 * 60
    assert shape.capacity.cores * count <= 12
    assert shape.seconds == PATIENCE + START_AND_END
    # Jobs that wait for their turn are not requested again, whatever has begun.
    there = Supply(shape.capacity, shape.seconds - 60, (MINUTE,) * shape.capacity.cores)
    assert request({MINUTE: 40 - shape.capacity.cores * count}, [there] * count) is None
    # With a shorter limit, fewer jobs run one after the other.
    shape, count = request({MINUTE: 8}, seconds=120.0)
    assert (shape.capacity.cores * count, shape.seconds) == (4, 120)


def test_demanding_jobs_share_no_worker_with_others_and_begin_first():
    requested = request_all({MINUTE: 40, LARGE: 1, TEN_HOURS: 1}, workers=8)
    shapes = {kind.most: (shape, count) for shape, count in requested for kind in shape.first}
    assert shapes[LARGE] == (Shape(Capacity(1, 3400), 60 + START_AND_END), 1)
    assert shapes[TEN_HOURS] == (Shape(Capacity(1, 50), 36_000 + START_AND_END), 1)
    assert shapes[MINUTE][0].seconds == PATIENCE + START_AND_END
    assert not any(kind.has(MINUTE) for kind in shapes[TEN_HOURS][0].first)
    # All share one worker if only one is allowed.
    [(shape, _)] = request_all({MINUTE: 40, LARGE: 1, TEN_HOURS: 1}, workers=1)
    for kind in (MINUTE, LARGE, TEN_HOURS):
        assert shape.capacity.obstacle(kind, shape.seconds) is None


def test_jobs_with_and_without_a_runtime_share_no_worker():
    requested = request_all({Resources(runtime_seconds=600): 1, Resources(): 1})
    assert {shape.seconds for shape, _ in requested} == {None, 600 + START_AND_END}
    (shape, _) = request(
        {Resources(runtime_seconds=600): 1, Resources(): 1}, workers=1, seconds=900.0
    )
    assert shape.seconds == 900


def test_a_large_job_gets_a_worker_of_its_own_though_all_workers_are_busy_with_small_ones():
    small = Supply(Capacity(2, 100), 10_000, (MINUTE, MINUTE))
    shape, count = request({MINUTE: 4, LARGE: 1}, [small, small])
    assert (shape.capacity, count) == (Capacity(1, 3400), 1)
    # One of the right size that has begun a long job does not help either.
    busy = Supply(Capacity(1, 3400), 40_000, (TEN_HOURS,))
    assert request({LARGE: 1}, [small, busy]) == (shape, 1)


def test_cores_are_requested_as_the_largest_job_has_them():
    shape, count = request({Resources(cores=3): 4}, workers=3)
    assert (shape.capacity.cores, count) == (6, 2)


@pytest.mark.parametrize(
    ("kind", "count", "expected"),
    [
        (Resources(memory_mb=9_000), 100, Capacity(1, 9_000)),
        (Resources(memory_mb=5_000), 100, Capacity(3, 15_000)),
        (Resources(cores=5), 100, Capacity(5, 0)),
        (Resources(cores=3), 100, Capacity(6, 0)),
        (Resources(gpus=1, memory_mb=10), 100, Capacity(2, 20, 2)),
        (Resources(cores=6, gpus=1), 100, Capacity(6, 0, 1)),
    ],
)
def test_no_core_is_requested_that_would_be_idle_because_another_resource_is_exhausted(
    kind, count, expected
):
    assert request({kind: count}) == (Shape(expected), 4)


def test_cores_that_small_jobs_use_beside_large_ones_are_requested():
    assert request({Resources(cores=5): 4, Resources(): 100})[0].capacity == Capacity(8, 0)
    waiting = {Resources(memory_mb=9_000): 1, Resources(memory_mb=10): 100}
    assert request(waiting, workers=1)[0].capacity.cores == 8


@pytest.mark.parametrize("count", [1000, 20_000])
def test_thousands_of_jobs_that_all_differ_are_sized_at_once(count):
    waiting = {
        Resources(memory_mb=100 + n % 997, runtime_seconds=60 + n % 3989): 1 for n in range(count)
    }
    requested = request_all(waiting, workers=100)
    assert len(requested) <= 5
    for kind in waiting:
        fits = [shape for shape, _ in requested if not shape.capacity.obstacle(kind, shape.seconds)]
        assert fits and any(each.has(kind) for shape in fits for each in shape.first)


def test_a_few_hundred_kinds_of_jobs_are_sized_at_most():
    kinds = [Resources(1 + n % 4, memory_mb=100 + n, runtime_seconds=60 + n) for n in range(3000)]
    found = few_kinds(kinds)
    assert len(found) <= 200
    assert Counter(each for alike in found.values() for each in alike) == Counter(kinds)
    assert all(kind.covers(each) for kind, alike in found.items() for each in alike)
    assert few_kinds(kinds[:200]) == {kind: [kind] for kind in kinds[:200]}


def test_requested_workers_without_jobs_are_unwanted():
    one, two = Supply(Capacity(1, 0)), Supply(Capacity(2, 0))
    assert not_wanted({Resources(): 2}, [], [one, one, one]) == [2]
    assert not_wanted({Resources(): 2}, [one], [one, one]) == [1]
    assert not_wanted({Resources(cores=2): 1}, [], [one, two]) == [0]
    assert not_wanted({}, [], [one]) == [0]


resources = st.builds(
    Resources,
    cores=st.integers(1, 10),
    exclusive=st.booleans(),
    memory_mb=st.none() | st.integers(0, 20_000),
    gpus=st.integers(0, 3),
    runtime_seconds=st.none() | st.integers(1, 10_000),
)


@settings(deadline=None)
@given(
    waiting=st.dictionaries(resources, st.integers(1, 1000), max_size=5),
    there=st.integers(0, 5),
    seconds=st.none() | st.floats(100, 20_000),
)
def test_never_too_many_never_too_large_and_never_one_that_no_job_fits(waiting, there, seconds):
    limits = Limits(4, NODE, seconds)
    supply = [Supply(Capacity(1, 0, 0))] * there
    requested = workers_to_request(waiting, supply, limits)
    possible = [kind for kind in waiting if obstacle(kind, limits) is None]
    if not requested:
        fits_there = [kind for kind in possible if Capacity(1, 0, 0).obstacle(kind) is None]
        assert there >= 4 or len(fits_there) == len(possible)
        return
    number = sum(count for _, count in requested)
    assert 1 <= number <= 4 - there
    for shape, count in requested:
        assert count >= 1
        assert shape.capacity.cores <= NODE.cores
        assert shape.capacity.memory_mb <= NODE.memory_mb
        assert shape.capacity.gpus <= NODE.gpus
        assert seconds is None or shape.seconds is None or shape.seconds <= seconds
        its_own = [kind for kind in possible if any(each.has(kind) for each in shape.first)]
        assert its_own
        assert all(shape.capacity.obstacle(kind, shape.seconds) is None for kind in its_own)
    # The request is sufficient, or the most that is allowed.
    come = [
        Supply(shape.capacity, shape.seconds) for shape, count in requested for _ in range(count)
    ]
    again = workers_to_request(waiting, [*supply, *come], limits)
    assert not again or there + number == 4
