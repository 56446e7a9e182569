"""The origin of a file whose record is not as Kochi writes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from git_helpers import git, write

from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal
from snakemake_kochi.artifacts.origin import find_origin, place_in_worktree
from snakemake_kochi.cli.show.records import record_command
from snakemake_kochi.errors import DamagedFileError, KochiError, nearest
from snakemake_kochi.files import to_json
from snakemake_kochi.paths import ProjectPaths

MACHINE = "local"
RECORD: dict[str, Any] = {
    "version": 1,
    **{name: name for name in ("experiment", "batch", "name", "machine", "node")},
    **dict.fromkeys(("worker", "queue", "job", "attempt"), "1"),
    "parameters": {"n": "1"},
    "duplicate": 0,
    "exit_status": 0,
    "seconds": 1.0,
    "snapshot": {"tree": "0" * 40, "commit": "0" * 40, "base": None, "dirty": False},
    "artifacts": [{"type": "file", "dest": "first.log", "src": "out"}],
    "started": "2026-01-01T00:00:00+00:00",
}


def kept(repository: Path, paths: ProjectPaths, change: dict[str, Any]) -> None:
    record = {**RECORD, "identity": "first", **change}
    source = write(paths.directory / "work" / "first", "first")
    journal(paths, MACHINE, Result("first", {"first.log": source}, record))
    assert commit_pending(repository, paths, MACHINE) == 1


def test_a_record_is_found_by_the_path_of_its_file(repository: Path, paths: ProjectPaths) -> None:
    kept(repository, paths, {})
    assert find_origin(repository, "local/first.log").record["parameters"] == {"n": "1"}


def test_a_checked_out_commit_of_an_artifact_branch_has_results_and_one_of_code_has_none(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    kept(repository, paths, {})
    add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--detach")
    git(repository, *add, str(tmp_path / "results"), "kochi_artifacts_local")
    file = tmp_path / "results" / "local" / "first.log"
    assert place_in_worktree(file) == (tmp_path / "results", "local/first.log")
    assert find_origin(repository, str(file)).file == "unknown"  # its record has no digest
    git(repository, *add, str(tmp_path / "code"), "main")
    assert place_in_worktree(tmp_path / "code" / "main.c") == (tmp_path / "code", "")


@pytest.mark.parametrize(
    "change",
    [
        {"snapshot": "text"},
        {"snapshot": {"tree": "0" * 40}},
        {"snapshot": {**RECORD["snapshot"], "tree": 1}},
        {"parameters": ["n"]},
        {"seconds": "long"},
        {"seconds": 1e300},
        {"started": 1},
        {"recipes": ["base"]},
        {"recipes": None},
        {"artifacts": [{"type": "file", "dest": "first.log", "src": 1}]},
        {"rule": {"name": 1}},
    ],
    ids=lambda change: json.dumps(change)[:40],
)
def test_a_record_that_was_edited_is_refused_with_its_key(
    repository: Path, paths: ProjectPaths, change: dict[str, Any]
) -> None:
    kept(repository, paths, change)
    with pytest.raises(KochiError) as caught:
        find_origin(repository, "local/first.log")
    assert f"was edited: {[*change][-1]}" in caught.value.message
    assert "kochi show record first" in str(caught.value)


def test_a_link_that_leads_out_of_the_project_has_no_record(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    kept(repository, paths, {})
    (repository / "link.log").symlink_to(write(tmp_path / "elsewhere" / "first.log", "first"))
    with pytest.raises(KochiError, match="is no result"):
        find_origin(repository, str(repository / "link.log"))


def test_a_file_of_type_stats_is_compared_with_its_record(
    repository: Path, paths: ProjectPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = [{"type": "stats", "dest": "first.stats", "src": None}]
    record = {**RECORD, "identity": "first", "artifacts": artifacts}
    stats = write(paths.directory / "work" / "first", to_json(record).decode())
    journal(paths, MACHINE, Result("first", {"first.stats": stats}, record))
    assert commit_pending(repository, paths, MACHINE) == 1
    assert find_origin(repository, "local/first.stats").file == "identical"
    monkeypatch.chdir(repository)
    written = write(repository / "results/local/first.stats", stats.read_text())
    assert find_origin(repository, str(written)).file == "identical"
    write(written, stats.read_text().replace('"seconds": 1.0', '"seconds": 0.5'))
    assert find_origin(repository, str(written)).file == "changed"


def test_a_record_of_a_newer_version_is_told_as_such(
    repository: Path, paths: ProjectPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(repository, paths, {"version": 99})
    monkeypatch.chdir(repository)
    told = CliRunner().invoke(record_command, ["first"]).exception
    assert isinstance(told, DamagedFileError) and "newer snakemake_kochi" in told.message
    both = CliRunner().invoke(record_command, ["--schema", "first"])
    assert both.exit_code == 2 and "leave out 'first'" in both.output


def test_a_success_has_no_reason(
    repository: Path, paths: ProjectPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(repository, paths, {"reason": None, "hardware": {"cpu_model": None}})
    monkeypatch.chdir(repository)
    told = CliRunner().invoke(record_command, ["first"]).output.splitlines()
    shown = {line.split()[0].rstrip(":"): line.split()[-1] for line in told}
    assert (shown["reason"], shown["hardware.cpu_model"]) == ("none", "unknown")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("", "the name of the file is empty"),
        ("results", "results is a directory.*kochi why results/local/first.log"),
        ("local/sub", "local/sub is a directory.*kochi why local/sub/second.log"),
        ("/etc/passwd", "/etc/passwd is no result"),
    ],
)
def test_a_file_that_is_none_is_told_with_what_to_type(
    repository: Path, paths: ProjectPaths, monkeypatch: pytest.MonkeyPatch, file: str, message: str
) -> None:
    source = write(paths.directory / "work" / "first", "first")
    record = {**RECORD, "identity": "first"}
    journal(paths, MACHINE, Result("first", {"sub/second.log": source}, record))
    assert commit_pending(repository, paths, MACHINE) == 1
    write(repository / "results/local/first.log", "first")
    monkeypatch.chdir(repository)
    with pytest.raises(KochiError) as caught:
        find_origin(repository, file)
    assert re.search(message, caught.value.sentences)


def test_a_message_lists_some_names_at_most() -> None:
    assert nearest("zzz", ["", *map(str, range(10, 22))]).endswith("18, 19 and 2 more")
