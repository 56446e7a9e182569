"""Isolated runs and builds of a batch, from the experiment to the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from snakemake_kochi.artifacts.record import contradictions

from .conftest import results

pytestmark = pytest.mark.phases

RUN = """run:
  isolate: [files, network]
  visible: ["$RAN:rw"]
"""
BUILD = """build:
  isolate: files
  visible: ["$RAN:rw"]
"""


def test_an_isolated_run_is_recorded_and_repeated_if_its_isolation_changes(project: Any) -> None:
    project.ran.touch()
    hidden = project.directory / "code.txt"
    project.edit("sum.yaml", "build:\n", BUILD)
    project.edit("sum.yaml", "run:\n", RUN)
    project.edit("sum.yaml", "cat built", f"! cat '{hidden}'; cat built")
    project.edit("sum.yaml", "metrics:", "facts: {sees: 'ls -d /opt'}\nmetrics:")
    project.snakemake(*results(1), "--kochi-cores", "2", executor="kochi")
    assert project.take_ran()[-1] == "run sum 1"
    (file,) = project.directory.glob(".snakemake/kochi/local/records/**/record.json")
    record = json.loads(Path(file).read_text())
    assert contradictions(record) == []
    assert record["isolation"].pop("version").startswith("bubblewrap 0.")
    assert record["isolation"] == {
        "isolate": ["files", "network"],
        "program": "bwrap",
        "visible": ["$RAN:rw"],
        "container": None,
    }
    assert "cannot access '/opt'" in record["facts"]["sees"]["output"]
    project.ran.touch()  # which is asked about, because not everything is finished
    assert project.planned_rules(*results(1)) == []
    project.edit("sum.yaml", "isolate: [files, network]", "isolate: files")
    assert project.planned_rules(*results(1)) == ["run_sum_first"]
    project.edit("sum.yaml", BUILD.splitlines()[1], "  isolate: [files, network]")
    assert "build_sum" in project.planned_rules(*results(1))
