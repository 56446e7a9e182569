"""What the records of runs say, and whether it is what the published schema describes."""

from __future__ import annotations

import json
import platform
from typing import Any

from support import git

from snakemake_kochi.artifacts.record import contradictions, record_schema

BRANCH = "kochi_artifacts_local"


def records_of(project: Any, place: str = "records") -> list[dict[str, Any]]:
    """The records in the branch, of results or of another kind, by `n`."""
    listed = git(project.directory, "ls-tree", "-r", "--name-only", BRANCH).splitlines()
    found = [
        json.loads(git(project.directory, "show", f"{BRANCH}:{file}"))
        for file in listed
        if file.startswith(f"local/.kochi/{place}/")
    ]
    return sorted(found, key=lambda record: record["parameters"]["n"])


def test_records_are_as_the_schema_describes(finished_project: Any) -> None:
    records = records_of(finished_project)
    assert len(records) == 2
    for record in records:
        assert contradictions(record) == []
        # last_lines: only of failed attempts
        assert record.keys() == record_schema()["properties"].keys() - {"last_lines"}
        assert len(json.dumps(record)) - len(record["snapshot"]["diff"]) < 6000


def test_a_record_says_on_what_node_a_run_was_and_what_it_took(finished_project: Any) -> None:
    record = records_of(finished_project)[0]
    assert record["outcome"] == "success" and record["reason"] is None
    assert record["hardware"]["threads"] >= 1
    assert record["hardware"]["memory_mb"] > 100
    assert record["system"]["kernel"] == platform.release()
    assert record["system"]["load"] >= 0
    usage = record["usage"]
    assert 0 < usage["user_seconds"] + usage["system_seconds"] < 60
    assert 1 <= usage["peak_memory_mb"] < 1000
    assert record["allocation"] is None and record["earlier_attempts"] == []
    for recipe in record["recipes"]:
        assert recipe["install"]["node"] == record["node"]
        assert recipe["install"]["started"] < record["started"]
    assert record["built"]["started"] < record["started"]
