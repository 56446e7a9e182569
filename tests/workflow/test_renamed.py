"""An artifact that is renamed or dropped is no reason to measure again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import git


def record_of(project: Any, file: str) -> dict[str, Any]:
    return dict(json.loads((project.directory / "results/local/sum" / file).read_text()))


@pytest.mark.compatibility
def test_renamed_and_dropped_artifacts_are_kept_without_a_run(finished_project: Any) -> None:
    results: Path = finished_project.directory / "results/local/sum"
    before = record_of(finished_project, "first/2_0.json")
    log = (results / "first/2_0.log").read_text()
    # One keeps its place, one is dropped, and one has a new name.
    finished_project.edit("sum.yaml", "${duplicate}.json", "${duplicate}.stats")
    text = (finished_project.directory / "sum.yaml").read_text()
    start, end = text.index("      - type: file"), text.index("      - type: stats")
    (finished_project.directory / "sum.yaml").write_text(text[:start] + text[end:])
    finished_project.snakemake("-n", "sum_first")
    finished_project.snakemake("sum_first")
    assert finished_project.take_ran() == []
    assert (results / "first/2_0.log").read_text() == log
    after = record_of(finished_project, "first/2_0.stats")
    assert [artifact["dest"] for artifact in after["artifacts"]] == [
        "sum/first/2_0.log",
        "sum/first/2_0.stats",
    ]
    same = {"started", "ended", "seconds", "snapshot", "build", "run", "recipes", "job", "node"}
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    branch = git(
        finished_project.directory, "ls-tree", "-r", "--name-only", "kochi_artifacts_local"
    )
    assert "local/sum/first/2_0.stats" in branch.splitlines()
    assert "Nothing to be done" in finished_project.snakemake("sum_first")

    # With its first name all of a result has another place.
    finished_project.edit("sum.yaml", "${n}_${duplicate}.log", "${n}-${duplicate}.out")
    finished_project.snakemake("sum_first")
    assert finished_project.take_ran() == []
    assert (results / "first/2-0.out").read_text() == log


def test_a_new_artifact_and_a_deleted_result_are_measured(finished_project: Any) -> None:
    results: Path = finished_project.directory / "results/local/sum"
    (results / "first/2_0.log").unlink()
    finished_project.edit("sum.yaml", "${duplicate}.log", "${duplicate}.out")
    finished_project.snakemake("sum_first")
    assert finished_project.take_ran() == ["run sum 2"]
    finished_project.edit(
        "sum.yaml",
        "      - type: stats",
        "      - {type: file, src: built.txt, dest: '${n}_${duplicate}.b'}\n      - type: stats",
    )
    finished_project.snakemake("sum_first")
    assert finished_project.take_ran() == ["run sum 1", "run sum 2"]
