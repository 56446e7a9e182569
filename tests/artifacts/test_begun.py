"""Records of attempts that were killed before they could write them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from git_helpers import git, write

from snakemake_kochi.artifacts.begun import begin, end, keep_unfinished
from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal, pending
from snakemake_kochi.paths import ProjectPaths, Root

MACHINE = "local"
RECORD: dict[str, Any] = {
    "version": 2,
    "identity": "one",
    "outcome": "lost",
    "machine": MACHINE,
    "artifacts": [],
    "queue": "",
    "job": "0",
    "attempt": "1",
    "nonce": "",
    "started": "2026-01-01T00:00:00+00:00",
}
BEGIN = """
import json, sys
from pathlib import Path
from snakemake_kochi.artifacts.begun import begin
from snakemake_kochi.paths import Root
root, project, record = sys.argv[1:]
begin(Root(Path(root)).project(Path(project)), json.loads(record))
"""


@pytest.fixture
def killed(repository: Path, paths: ProjectPaths, tmp_path: Path) -> None:
    """An attempt without a worker, whose process is gone."""
    assert Root(tmp_path / "root").project(repository).directory == paths.directory
    words = (str(tmp_path / "root"), str(repository), json.dumps(RECORD))
    subprocess.run((sys.executable, "-c", BEGIN, *words), check=True)


def test_the_record_of_a_killed_attempt_is_committed_once(
    repository: Path, paths: ProjectPaths, killed: None
) -> None:
    for _ in range(2):
        keep_unfinished(paths, MACHINE)
        commit_pending(repository, paths, MACHINE)
    listed = git(repository, "ls-tree", "-r", "--name-only", "kochi_artifacts_local").split()
    (path,) = listed
    assert path.startswith("local/.kochi/failed/")
    record = json.loads(git(repository, "show", f"kochi_artifacts_local:{path}"))
    assert (record["outcome"], record["reason"]) == ("failed", "its process was killed")
    assert record["seconds"] > 0 and record["ended"] > record["started"]
    assert list(paths.begun(MACHINE).iterdir()) == []


def test_an_attempt_that_goes_on_has_no_record_yet(paths: ProjectPaths) -> None:
    begin(paths, RECORD)
    keep_unfinished(paths, MACHINE)
    assert pending(paths, MACHINE) == ()
    end(paths, RECORD)
    assert list(paths.begun(MACHINE).iterdir()) == []


def test_an_attempt_that_was_killed_after_its_result_was_journaled_has_succeeded(
    repository: Path, paths: ProjectPaths, killed: None
) -> None:
    source = write(paths.directory / "work" / "one", "one")
    journal(paths, MACHINE, Result("one", {"one.log": source}, {**RECORD, "outcome": "success"}))
    keep_unfinished(paths, MACHINE)
    commit_pending(repository, paths, MACHINE)
    listed = git(repository, "ls-tree", "-r", "--name-only", "kochi_artifacts_local").split()
    assert len(listed) == 2 and "local/one.log" in listed


def test_a_damaged_note_stays_and_does_not_block_others(
    repository: Path, paths: ProjectPaths, killed: None
) -> None:
    damaged = write(paths.begun(MACHINE) / "a.json", '{"version": 1, "record": 5}')
    keep_unfinished(paths, MACHINE)
    assert pending(paths, MACHINE) == ("one",)
    assert damaged.exists()
