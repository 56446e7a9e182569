"""A commit that replaces newer results is reported."""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from git_helpers import GitProgram, git, write

from snakemake_kochi.artifacts.committer import commit_in_burst, commit_pending, committer_lock
from snakemake_kochi.artifacts.journal import Result, journal
from snakemake_kochi.artifacts.replaced import take_replaced
from snakemake_kochi.paths import ProjectPaths

MACHINE = "local"


def put(paths: ProjectPaths, identity: str, dest: str, ended: str, **more: Any) -> None:
    record = {"identity": identity, "ended": ended, "artifacts": [{"dest": dest}], **more}
    source = write(paths.directory / "work" / identity, identity)
    journal(paths, MACHINE, Result(identity, {dest: source}, record))


def test_a_late_commit_of_an_old_result_reports_the_newer_one_it_replaces(
    repository: Path, paths: ProjectPaths
) -> None:
    put(paths, "one", "a b.log", "2026-03-01T10:00:00+00:00")
    put(paths, "two", "c.log", "2026-03-01T10:00:00+00:00")
    commit_pending(repository, paths, MACHINE)
    assert take_replaced(paths, MACHINE) is None
    put(paths, "late", "a b.log", "2026-03-01T09:00:00+00:00")
    put(paths, "later", "c.log", "2026-03-01T12:00:00+01:00")
    put(paths, "new", "d.log", "2026-01-01T00:00:00+00:00")
    commit_pending(repository, paths, MACHINE)
    told = take_replaced(paths, MACHINE)
    assert told is not None
    assert told.count == 1
    commit = git(repository, "rev-parse", "kochi_artifacts_local~").strip()
    assert told.example.endswith(f"type: git show '{commit[:12]}:local/a b.log'")
    assert take_replaced(paths, MACHINE) is None


def test_results_of_several_commits_are_counted_together(
    repository: Path, paths: ProjectPaths
) -> None:
    for name in "abc":
        put(paths, name, f"{name}.log", "2026-03-01T10:00:00+00:00")
        commit_pending(repository, paths, MACHINE)
    for name in "abc":
        put(paths, f"old-{name}", f"{name}.log", "2026-02-01T10:00:00+00:00")
    commit_pending(repository, paths, MACHINE)
    put(paths, "older-a", "a.log", "2026-01-01T10:00:00+00:00")
    commit_pending(repository, paths, MACHINE)
    told = take_replaced(paths, MACHINE)
    assert told is not None and told.count == 4
    assert told.describe().startswith("4 newer results replaced by older work. ")


def test_a_result_of_an_older_commit_is_older_though_it_was_made_later(
    repository: Path, paths: ProjectPaths
) -> None:
    older = git(repository, "rev-parse", "HEAD").strip()
    words = ("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false", "commit", "--quiet")
    git(repository, *words, "--allow-empty", "-m", "newer")
    newer = git(repository, "rev-parse", "HEAD").strip()
    put(paths, "one", "a.log", "2026-03-01T10:00:00+00:00", snapshot={"base": newer})
    commit_pending(repository, paths, MACHINE)
    put(paths, "two", "a.log", "2026-03-01T11:00:00+00:00", snapshot={"base": older})
    commit_pending(repository, paths, MACHINE)
    told = take_replaced(paths, MACHINE)
    assert told is not None and newer[:12] in told.example
    put(paths, "three", "a.log", "2026-03-01T12:00:00+00:00", snapshot={"base": newer})
    commit_pending(repository, paths, MACHINE)
    assert take_replaced(paths, MACHINE) is None


def test_one_replaced_path_of_a_large_commit_is_found_in_little_memory_and_by_few_git_commands(
    repository: Path, paths: ProjectPaths, git_program: GitProgram
) -> None:
    older = git(repository, "rev-parse", "HEAD").strip()
    words = ("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false", "commit", "--quiet")
    git(repository, *words, "--allow-empty", "-m", "newer")
    newer = git(repository, "rev-parse", "HEAD").strip()
    moment = "2026-03-01T10:00:00+00:00"
    for number in range(100):
        content = {"snapshot": {"base": newer}, "padding": "x" * 100_000}
        put(paths, f"new-{number}", f"{number}.log", moment, **content)
    commit_pending(repository, paths, MACHINE)
    put(paths, "old", "57.log", "2026-02-01T10:00:00+00:00", snapshot={"base": older})
    tracemalloc.start()
    commit_pending(repository, paths, MACHINE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    told = take_replaced(paths, MACHINE)
    assert told is not None and told.count == 1
    assert peak < 5_000_000  # of 10 MB of records
    git_program.take_commands()
    for number in range(100):
        base = {"base": older}
        put(paths, f"old-{number}", f"{number}.log", "2026-04-01T10:00:00+00:00", snapshot=base)
    commit_pending(repository, paths, MACHINE)
    told = take_replaced(paths, MACHINE)
    assert told is not None and told.count == 99
    assert len(git_program.take_commands()) < 30


def test_nobody_waits_for_the_search_for_replaced_results(
    repository: Path, paths: ProjectPaths, git_program: GitProgram
) -> None:
    def lock() -> None:
        with committer_lock(paths, MACHINE, 0):
            pass

    for number, commit in enumerate((commit_pending, commit_pending, commit_in_burst)):
        put(paths, f"r{number}", "a.log", f"2026-03-01T1{number}:00:00+00:00")
        # The first commit replaces nothing, so nothing is searched.
        with git_program.before("rev-list", lock) if number else nullcontext():
            assert commit(repository, paths, MACHINE) == 1
