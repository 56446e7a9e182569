"""Packed jobs on the command line, in a clean-up, and who starts a packer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cleaning.stage import DAY, make_old
from packing.stage import Stage
from support import wait_until

from snakemake_kochi.cleaning.clean import Report, clean
from snakemake_kochi.errors import DamagedFileError, NameNotFoundError
from snakemake_kochi.location import Location
from snakemake_kochi.packing import pack_in_background
from snakemake_kochi.packs import JobFilter
from snakemake_kochi.packs.pack import Pack
from snakemake_kochi.packs.packs import group_summaries
from snakemake_kochi.paths import Root
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue import find_job, list_jobs
from snakemake_kochi.terminal.session import Session

NAMES = [("one", "two")[number % 2] for number in range(40)]


def clean_up(stage: Stage, is_dry: bool = False, **rules: object) -> Report:
    root = Root(stage.directory / "root")
    return clean(root, stage.machine, Rules(**rules), is_dry)  # type: ignore[arg-type]


def test_kochi_shows_packed_jobs_as_others(
    stage: Stage, kochi: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_ROOT", str(stage.directory / "root"))
    stage.end(*NAMES, ok=lambda job: job != 3)

    def said(*words: str) -> str:
        result = kochi(*words, cwd=stage.directory)
        assert result.returncode == 0, result  # type: ignore[attr-defined]
        return str(result.stdout)  # type: ignore[attr-defined]

    commands = [
        ("show", "jobs", "-t", "-n", "two", "-l", "40"),
        ("show", "jobs", "--failed"),
        ("show", "jobs", "-t", "-q", "nothing"),
        ("show", "log", "job", "5"),
        ("show", "log", "job", "5", "-f"),
    ]
    before = [said(*command) for command in commands]
    shown = json.loads(said("show", "job", "5", "--json"))
    assert stage.pack().jobs == 39 and stage.directories() == [3]
    assert [said(*command) for command in commands] == before
    (pack,) = stage.packs()
    assert said("show", "path", "job", "5").strip() == str(pack)
    assert f"Log: {pack} 5/log\n" in said("show", "job", "5")
    after = json.loads(said("show", "job", "5", "--json"))
    assert (shown.pop("pack"), after.pop("pack")) == (None, str(pack))
    for each in (shown, after):
        for attempt in each["attempts"]:
            del attempt["seconds"]
    assert after == shown


def test_old_packed_jobs_are_deleted_and_others_stay_in_their_pack(stage: Stage) -> None:
    stage.end(*NAMES[:20])
    make_old(stage.machine.jobs, days=40)
    stage.end(*NAMES[20:])
    stage.pack()
    plan = clean_up(stage, is_dry=True)
    assert (plan.freed["jobs"].count, plan.freed["jobs"].inodes) == (20, 0)
    assert len(stage.list()) == 40
    report = clean_up(stage)
    assert (report.freed["jobs"].count, report.faults) == (20, ())
    assert sorted(view.job for view in stage.list()) == list(range(20, 40))
    assert len(list_jobs(stage.machine, True, 99, JobFilter(names=("one",)))) == 10
    with pytest.raises(NameNotFoundError, match="kochi clean"):
        find_job(stage.machine, 5)
    assert stage.log(25) == b"two said so\n"
    # All of the pack.
    (pack,) = stage.packs()
    report = clean_up(stage, jobs=0.0)
    assert (report.freed["jobs"].count, report.freed["jobs"].inodes) == (20, 1)
    assert not pack.exists() and stage.list() == []
    assert list(stage.machine.packs.glob("*/*.zip")) == []
    (ticket,) = stage.submit(["next"])
    assert ticket.job == 40


def test_a_keep_rule_keeps_packed_jobs_by_name_and_by_number(stage: Stage) -> None:
    stage.end(*NAMES)
    stage.pack()
    clean_up(stage, jobs=0.0, keep=("jobs:tw*", "jobs:4"))
    assert sorted(view.job for view in stage.list()) == sorted({4, *range(1, 40, 2)})


def test_a_clean_up_packs(stage: Stage) -> None:
    stage.end(*NAMES)
    assert clean_up(stage).faults == ()
    assert stage.directories() == [] and len(stage.list()) == 40


def test_a_clean_up_in_another_time_zone_reads_the_same_age(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.end(*NAMES)
    stage.pack()
    (path,) = stage.packs()
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        with Pack(path) as pack:
            age = time.time() - pack.jobs[7]["result.json"].modified
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert 0 <= age < DAY / 4


def test_a_packer_in_the_background_packs_and_says_so(stage: Stage) -> None:
    stage.end(*NAMES[:31])
    pack_in_background(stage.machine)
    assert not stage.machine.packed.exists()
    stage.end(*NAMES[:2])
    pack_in_background(stage.machine)
    wait_until(stage.machine.packed.exists, "the packer ends")
    assert json.loads(stage.machine.packed.read_text()) == {
        "version": 1,
        "jobs": 33,
        "faults": [],
    }
    assert stage.directories() == []


def test_submissions_start_a_packer_once_a_minute_at_most(stage: Stage) -> None:
    stage.end(*NAMES)
    stage.machine.packed.write_bytes(b"")
    pack_in_background(stage.machine, is_often=True)
    assert len(stage.directories()) == 40 and stage.machine.packed.read_bytes() == b""
    os.utime(stage.machine.packed, (0, 0))
    pack_in_background(stage.machine, is_often=True)
    wait_until(lambda: stage.machine.packed.read_bytes() != b"", "the packer ends")
    assert stage.directories() == []


def test_an_index_that_is_damaged_or_behind_costs_only_time(stage: Stage) -> None:
    stage.end(*NAMES)
    stage.pack()
    group = stage.machine.pack_group(0)
    (index,) = Path(group.directory).glob("index-*")
    whole = group_summaries(group)
    assert sorted(job for jobs in whole.values() for job in jobs) == list(range(40))
    content = index.read_bytes()
    for text in (b"", b"{", content.replace(b".zip", b".gone"), content[:-20]):
        index.write_bytes(text)
        assert group_summaries(group) == whole
    index.unlink()
    assert group_summaries(group) == whole


def test_a_session_tells_the_last_lines_of_a_packed_log(stage: Stage) -> None:
    stage.end(*NAMES)
    root = Root(stage.directory / "root")
    said: list[str] = []
    session = Session(Location(Machine("local"), None, root), 4, said.append, ends_it=False)

    def told() -> list[str]:
        said.clear()
        session.run()
        return list(said)

    before = told()
    assert before[-1] == "  one said so"
    stage.pack()
    assert told() == before
    # No answer comes from a pack that is damaged, but a message.
    (pack,) = stage.packs()
    pack.write_bytes(b"no archive")
    with pytest.raises(DamagedFileError, match="unzip -t"):
        session.run()
