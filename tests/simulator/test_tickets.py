"""The protocol of the queue, in every order of events and with every fault."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulator import scenes, telling
from simulator.histories import play
from simulator.rules import RULES, Rule, without
from simulator.scenes import SCENES

# `make nightly` plays all of them.
SHARE = int(os.environ.get("KOCHI_SHARE", "24"))  # one variant in so many
HISTORIES = int(os.environ.get("KOCHI_HISTORIES", "300"))


@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_lost_or_done_twice_when_a_process_is_killed(scene: str) -> None:
    for what, problems in telling.single_kills(scenes, SCENES[scene]):
        assert not problems, what


@pytest.mark.parametrize("variant", ["faults", "sleeps", "outages"])
@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_lost_or_done_twice_whatever_fails(scene: str, variant: str) -> None:
    for what, problems in telling.VARIANTS[variant](scenes, SCENES[scene], share=SHARE):
        assert not problems, what


@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_lost_or_done_twice_when_two_processes_are_killed(scene: str) -> None:
    for what, problems in telling.pairs_of_kills(scenes, SCENES[scene], share=SHARE):
        assert not problems, what


def test_random_histories() -> None:
    for seed in range(HISTORIES):
        told = play(seed)
        assert not told.problems, f"seed {seed}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_simulator_misses_each_rule(rule: Rule, tmp_path: Path) -> None:
    with without(rule, tmp_path) as changed:
        tellings = telling.VARIANTS[rule.where](changed, changed.SCENES[rule.scene], rule.of)
        assert any(problems for _, problems in tellings)
