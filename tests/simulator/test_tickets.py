"""The protocol of the queue, in every order of events and with every fault."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulator import scenes, telling
from simulator.histories import play
from simulator.rules import RULES, Rule, without
from simulator.scenes import SCENES

# `make test` plays the first part of each, `make nightly` all: an item has a limit of time.
NIGHTLY = "KOCHI_NIGHTLY" in os.environ
PARTS = 48  # of the places in a scene
PART = pytest.mark.parametrize("part", range(PARTS if NIGHTLY else 1))
HISTORIES = 300


@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_lost_or_done_twice_when_a_process_is_killed(scene: str) -> None:
    for what, problems in telling.single_kills(scenes, SCENES[scene]):
        assert not problems, what


@PART
@pytest.mark.parametrize("variant", ["faults", "sleeps", "outages", "slow"])
@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_lost_or_done_twice_whatever_fails(scene: str, variant: str, part: int) -> None:
    share = slice(part, None, PARTS)
    for what, problems in telling.VARIANTS[variant](scenes, SCENES[scene], share=share):
        assert not problems, what


@PART
@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_lost_or_done_twice_when_two_processes_are_killed(scene: str, part: int) -> None:
    share = slice(part, None, PARTS)
    for what, problems in telling.pairs_of_kills(scenes, SCENES[scene], share=share):
        assert not problems, what


@pytest.mark.parametrize("first", range(0, 1_000_000 if NIGHTLY else 1, HISTORIES))
def test_random_histories(first: int) -> None:
    for seed in range(first, first + HISTORIES):
        told = play(seed)
        assert not told.problems, f"seed {seed}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_that_is_taken_out_is_found(rule: Rule, tmp_path: Path) -> None:
    with without(rule, tmp_path) as changed:
        tellings = telling.VARIANTS[rule.where](changed, changed.SCENES[rule.scene], rule.of)
        assert any(problems for _, problems in tellings)
