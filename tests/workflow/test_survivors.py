"""What Python searches for garbage while Snakemake makes its DAG, and afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from snakemake_kochi.library.survivors import Survivors


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = list(gc.callbacks)
    gc.unfreeze()
    yield
    gc.callbacks[:] = before
    gc.unfreeze()


def test_what_survived_a_search_is_left_out_of_the_next_ones_until_jobs_can_run() -> None:
    workflow = SimpleNamespace(scheduler=None)
    Survivors(workflow).begin()
    first = [object()]
    gc.collect()
    assert not any(each is first for each in gc.get_objects())

    workflow.scheduler = object()
    later = [object()]
    gc.collect()
    assert any(each is later for each in gc.get_objects())
    assert not any(isinstance(each, Survivors) for each in gc.callbacks)


def test_a_small_search_leaves_everything_to_the_next_one() -> None:
    Survivors(SimpleNamespace(scheduler=None)).begin()
    gc.collect(1)
    assert gc.get_freeze_count() == 0


def test_a_snakemake_that_does_not_tell_when_jobs_run_is_searched_as_ever() -> None:
    Survivors(SimpleNamespace()).begin()
    gc.collect()
    assert gc.get_freeze_count() == 0


def test_a_second_workflow_of_a_process_replaces_the_first() -> None:
    for _ in range(2):
        Survivors(SimpleNamespace(scheduler=None)).begin()
    assert sum(isinstance(each, Survivors) for each in gc.callbacks) == 1
