"""How often a run looks for what nobody notifies it of."""

from __future__ import annotations

from snakemake_kochi.executor.results import Pauses, Search


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pauses_grow_while_nothing_happens_and_begin_anew():
    pauses = Pauses()
    pauses.note([1, 2], True)
    first = pauses.inbox, pauses.look
    assert first == (0.5, 0.5)
    for _ in range(20):
        pauses.note([1, 2], True)
    assert (pauses.inbox, pauses.look) == (1.0, 2.0), "results of other nodes come a second later"
    for _ in range(20):
        pauses.note([1, 2], True, are_near=True)
    assert pauses.inbox == 2.0, "notifications arrive from the workers of this node"
    pauses.note([1, 2], True)
    assert pauses.inbox == 1.0, "a worker of another node has come"
    pauses.note([1, 2, 3], True)
    assert (pauses.inbox, pauses.look) == first, "a job was submitted"
    pauses.note([1, 2, 3], True)
    assert pauses.look > 0.5
    pauses.reset()
    assert (pauses.inbox, pauses.look) == first, "a result came"


def test_pauses_do_not_grow_while_jobs_of_a_dead_run_end():
    pauses = Pauses()
    for _ in range(20):
        pauses.note([1], False)
    assert pauses.look == 0.5


def test_the_search_for_lost_deliveries_takes_each_job_once_in_a_round():
    clock = Clock()
    search = Search(clock)
    jobs = list(range(150))
    assert list(search.next(jobs)) == [], "no job has ended yet"
    clock.now += 10
    looks = [list(search.next(jobs)) for _ in range(4)]
    assert looks[0] + looks[1] + looks[2] == jobs
    assert max(map(len, looks)) == 64
    assert looks[3] == [], "each job was looked for a moment ago"
    clock.now += 10
    assert list(search.next(jobs[5:7])) == [5, 6]


def test_nothing_is_searched_while_deliveries_arrive():
    clock = Clock()
    search = Search(clock)
    clock.now += 10
    search.put_off()
    search.put_off()
    assert list(search.next([1])) == []
    assert list(search.next([1])) == [1]
