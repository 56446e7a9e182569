"""The protocol of the queue, in every order of events and with every fault."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import REPOSITORY

from simulator import scenes, telling
from simulator.faults import FAULTS
from simulator.histories import play
from simulator.rules import RULES, Rule, without
from simulator.scenes import SCENES

# `make test` plays the first part of each, `make nightly` all: an item has a limit of time.
NIGHTLY = int(os.environ.get("KOCHI_NIGHTLY") or 0)  # histories
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
    share = slice(part, None, PARTS if NIGHTLY else 4 * PARTS)
    for what, problems in telling.pairs_of_kills(scenes, SCENES[scene], share=share):
        assert not problems, what


@pytest.mark.parametrize("first", range(0, NIGHTLY or 1, HISTORIES))
def test_random_histories(first: int) -> None:
    for seed in range(first, first + HISTORIES):
        told = play(seed)
        assert not told.problems, f"seed {seed}"


SEEN_HERE = [*RULES, *(fault for fault in FAULTS if "::" not in fault.where)]
SEEN_BY_TESTS = [fault for fault in FAULTS if "::" in fault.where]
FILES = sorted({fault.where.partition("::")[0] for fault in SEEN_BY_TESTS})


@pytest.mark.parametrize("rule", SEEN_HERE, ids=lambda rule: rule.name)
def test_a_rule_that_is_taken_out_is_found(rule: Rule, tmp_path: Path) -> None:
    with without(rule, tmp_path) as changed:
        scene = changed.SCENES.get(rule.scene)
        tellings = telling.VARIANTS[rule.where](changed, scene, rule.of)
        assert any(problems for _, problems in tellings)


@pytest.mark.parametrize("fault", SEEN_BY_TESTS if NIGHTLY else [], ids=lambda fault: fault.name)
def test_a_fault_that_is_put_back_is_seen(fault: Rule, tmp_path: Path) -> None:
    """By a test with real processes, in a copy of the project."""
    told = run_in_copy(tmp_path, [fault.where], fault)
    assert told.returncode == 1, told.stdout
    assert " failed" in told.stdout, told.stdout


@pytest.mark.parametrize("file", FILES if NIGHTLY else [])
def test_without_a_fault_the_same_tests_pass(file: str, tmp_path: Path) -> None:
    names = {fault.where for fault in SEEN_BY_TESTS if fault.where.startswith(f"{file}::")}
    told = run_in_copy(tmp_path, sorted(names))
    assert told.returncode == 0, told.stdout


def run_in_copy(
    directory: Path, names: list[str], fault: Rule | None = None
) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the project, with this fault."""
    ignored = shutil.ignore_patterns(".*", "build")
    copy = shutil.copytree(REPOSITORY, directory / "copy", ignore=ignored)
    if fault is not None:
        fault.break_in(copy / "snakemake_kochi")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
