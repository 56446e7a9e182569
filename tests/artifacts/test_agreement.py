"""The branch gets all results in results/, whatever happens to the branch or to .git."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from git_helpers import GitProgram, git, write

from snakemake_kochi.artifacts.agreement import disagree, note_directory
from snakemake_kochi.artifacts.branch_content import record_path
from snakemake_kochi.artifacts.branches import discard, initialise, synchronise
from snakemake_kochi.artifacts.committer import (
    commit_in_burst,
    commit_missing,
    commit_pending,
    committer_lock,
)
from snakemake_kochi.artifacts.journal import Result, journal, pending
from snakemake_kochi.artifacts.promises import promise_to_commit
from snakemake_kochi.artifacts.published import branch_called as branch
from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.errors import GitError, KochiError
from snakemake_kochi.locks import find_lock_settings
from snakemake_kochi.paths import ProjectPaths, WorkingPaths

MACHINE = "local"
NO_HOOKS = ("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false")


def lay(directory: Path, identity: str, dest: str = "", text: str = "") -> Result:
    """Leave a result and its record in a working directory as a run does, but do not journal it."""
    working = WorkingPaths(directory, MACHINE)
    dest = dest or f"{identity}.log"
    file = write(working.results / dest, text or identity)
    record: dict[str, Any] = {
        "identity": identity,
        "machine": MACHINE,
        "ended": datetime.now(UTC).isoformat(),
        "artifacts": [{"type": "stdout", "dest": dest, "src": None}],
    }
    write(working.records / "fib" / "test" / dest / "record.json", json.dumps(record))
    return Result(identity, {dest: file}, record)


def keep(repository: Path, paths: ProjectPaths, *identities: str) -> None:
    for identity in identities:
        journal(paths, MACHINE, lay(repository, identity))
    commit_in_burst(repository, paths, MACHINE)


def kept(repository: Path, name: str = branch(MACHINE)) -> set[str]:
    """Artifacts in a branch whose record is there, too."""
    listed = git(repository, "ls-tree", "-r", "--name-only", "--full-tree", name).splitlines()
    identities = {Path(path).stem for path in listed if "/.kochi/" not in path}
    return {name for name in identities if record_path(MACHINE, name) in listed}


def delete_branch(repository: Path) -> None:
    git(repository, *NO_HOOKS, "branch", "--quiet", "-D", branch(MACHINE))


@pytest.fixture(autouse=True)
def settled(repository: Path, paths: ProjectPaths) -> None:
    """A first run has ended."""
    write(repository / ".gitignore", "results/\n.snakemake/\n")
    keep(repository, paths, "first")
    assert commit_missing(repository, paths, MACHINE) == 0


def test_results_of_a_branch_that_is_deleted_during_a_run_are_committed_at_its_end(
    repository: Path, paths: ProjectPaths
) -> None:
    keep(repository, paths, "a", "b")
    delete_branch(repository)
    keep(repository, paths, "c")
    assert kept(repository) == {"c"}
    assert commit_missing(repository, paths, MACHINE) == 3
    assert kept(repository) == {"first", "a", "b", "c"}
    assert commit_missing(repository, paths, MACHINE) == 0
    assert git(repository, "fsck", "--strict", "--no-dangling") == ""


def test_results_that_a_moved_branch_lost_are_committed_by_the_next_run(
    repository: Path, paths: ProjectPaths
) -> None:
    keep(repository, paths, "a")
    keep(repository, paths, "b")
    git(repository, *NO_HOOKS, "branch", "--force", branch(MACHINE), f"{branch(MACHINE)}~2")
    assert kept(repository) == {"first"}
    keep(repository, paths, "c")
    assert commit_missing(repository, paths, MACHINE) == 2
    assert kept(repository) == {"first", "a", "b", "c"}


def test_a_journal_entry_survives_if_the_branch_is_deleted_right_after_its_commit(
    repository: Path, paths: ProjectPaths, git_program: GitProgram
) -> None:
    journal(paths, MACHINE, lay(repository, "a"))
    with git_program.after("update-ref", lambda: delete_branch(repository)):
        assert commit_pending(repository, paths, MACHINE) == 1
    assert kept(repository) == {"a"}
    assert pending(paths, MACHINE) == ()


def test_without_a_git_directory_results_stay_in_the_journal(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    # Git would find this one.
    git(tmp_path, "init", "--quiet")
    journal(paths, MACHINE, lay(repository, "a"))
    (repository / ".git").rename(tmp_path / "away")
    with pytest.raises(GitError, match="no git repository"):
        commit_pending(repository, paths, MACHINE)
    with pytest.raises(GitError, match="no git repository"):
        commit_missing(repository, paths, MACHINE)
    assert git(tmp_path, "for-each-ref") == ""
    (tmp_path / "away").rename(repository / ".git")
    assert commit_pending(repository, paths, MACHINE) == 1
    assert kept(repository) == {"first", "a"}


def test_results_of_a_new_repository_in_the_place_of_the_old_one_are_committed(
    repository: Path, paths: ProjectPaths
) -> None:
    shutil.rmtree(repository / ".git")
    git(repository, "init", "--quiet")
    choose_name(repository, MACHINE, MACHINE)
    assert commit_missing(repository, paths, MACHINE) == 1
    assert kept(repository) == {"first"}


def test_results_whose_journal_was_removed_are_committed_by_a_sync(
    repository: Path, paths: ProjectPaths
) -> None:
    journal(paths, MACHINE, lay(repository, "a"))
    shutil.rmtree(paths.directory)
    assert commit_missing(repository, paths, MACHINE, thorough=True) == 1
    assert kept(repository) == {"first", "a"}


def test_results_discarded_before_kochi_root_was_emptied_are_not_committed_by_a_run(
    repository: Path, paths: ProjectPaths
) -> None:
    """Nor are results that an earlier release discarded without a note."""
    discard(repository, paths, MACHINE)
    shutil.rmtree(paths.directory)
    assert commit_missing(repository, paths, MACHINE) == 0
    keep(repository, paths, "a")
    assert commit_missing(repository, paths, MACHINE) == 0
    assert kept(repository) == {"a"}


def test_a_disagreement_is_noted_without_an_earlier_note(
    repository: Path, paths: ProjectPaths
) -> None:
    shutil.rmtree(paths.directory)
    disagree(paths, MACHINE)
    lay(repository, "a")
    assert commit_missing(repository, paths, MACHINE) == 1
    assert kept(repository) == {"first", "a"}


def test_a_run_with_nothing_to_commit_does_not_wait_for_the_lock(
    repository: Path, paths: ProjectPaths
) -> None:
    with committer_lock(paths, MACHINE, 0):
        assert commit_missing(repository, paths, MACHINE) == 0
        disagree(paths, MACHINE)
        with pytest.raises(KochiError, match="another process has been committing"):
            commit_missing(repository, paths, MACHINE)


def test_the_result_of_a_damaged_journal_entry_is_committed_from_the_results_directory(
    repository: Path, paths: ProjectPaths
) -> None:
    journal(paths, MACHINE, lay(repository, "a"))
    (paths.journal(MACHINE) / "a").write_bytes(b"\0" * 10)
    assert commit_pending(repository, paths, MACHINE) == 0
    assert commit_missing(repository, paths, MACHINE) == 1
    assert kept(repository) == {"first", "a"}


def test_records_are_read_only_if_the_branch_lost_commits(
    repository: Path, paths: ProjectPaths
) -> None:
    """Otherwise the end of each run would take longer with each result."""
    lay(repository, "a")
    assert commit_missing(repository, paths, MACHINE) == 0
    assert commit_missing(repository, paths, MACHINE, thorough=True) == 1


def test_a_result_left_in_results_while_another_is_committed_is_not_forgotten(
    repository: Path, paths: ProjectPaths, git_program: GitProgram
) -> None:
    def meanwhile() -> None:
        lay(repository, f"alone{len(kept(repository))}")
        disagree(paths, MACHINE)

    with git_program.before("update-ref", meanwhile):
        keep(repository, paths, "a")
    with git_program.before("update-ref", meanwhile):
        assert commit_missing(repository, paths, MACHINE) == 1
    assert commit_missing(repository, paths, MACHINE) == 1
    assert kept(repository) == {"first", "a", "alone1", "alone2"}


def test_discarded_results_are_not_committed_again(repository: Path, paths: ProjectPaths) -> None:
    discard(repository, paths, MACHINE)
    assert commit_missing(repository, paths, MACHINE, thorough=True) == 0
    assert branch(MACHINE) not in git(repository, "for-each-ref")
    keep(repository, paths, "a")
    assert commit_missing(repository, paths, MACHINE) == 0
    delete_branch(repository)
    assert commit_missing(repository, paths, MACHINE) == 1
    assert kept(repository) == {"a"}


def test_results_that_a_commit_removed_are_not_committed_again(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    place = tmp_path / "look"
    git(repository, *NO_HOOKS, "worktree", "add", "--quiet", str(place), branch(MACHINE))
    git(place, *NO_HOOKS, "rm", "--quiet", "-r", MACHINE)
    git(place, *NO_HOOKS, "commit", "--quiet", "--message=measured wrongly")
    assert commit_missing(repository, paths, MACHINE, thorough=True) == 0
    keep(repository, paths, "a")
    assert commit_missing(repository, paths, MACHINE, thorough=True) == 0
    assert kept(repository) == {"a"}


def test_files_that_changed_since_their_run_are_named_and_not_committed(
    repository: Path, paths: ProjectPaths, caplog: pytest.LogCaptureFixture
) -> None:
    lay(repository, "a")
    lay(repository, "b")
    edited = WorkingPaths(repository, MACHINE).results / "a.log"
    edited.write_text("edited by hand")
    later = edited.stat().st_mtime_ns + 10**9
    os.utime(edited, ns=(later, later))
    (WorkingPaths(repository, MACHINE).results / "first.log").unlink()
    delete_branch(repository)
    assert commit_missing(repository, paths, MACHINE) == 1
    assert kept(repository) == {"b"}
    assert f"{edited} was changed after the run" in caplog.text


def test_results_in_every_directory_in_which_snakemake_ran_are_examined(
    repository: Path, paths: ProjectPaths
) -> None:
    note_directory(paths, MACHINE, repository / "sub")
    journal(paths, MACHINE, lay(repository / "sub", "below"))
    assert commit_pending(repository, paths, MACHINE) == 1
    delete_branch(repository)
    assert commit_missing(repository, paths, MACHINE) == 2
    assert kept(repository) == {"first", "below"}


def test_an_unreadable_working_directory_does_not_block_the_others(
    repository: Path, paths: ProjectPaths, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop, file = tmp_path / "a loop", tmp_path / "a file"
    for directory in (loop, file):
        note_directory(paths, MACHINE, directory)
    loop.symlink_to(loop)
    file.write_text("was a directory")
    lay(repository, "a")
    disagree(paths, MACHINE)
    assert commit_missing(repository, paths, MACHINE) == 1
    assert kept(repository) == {"first", "a"}
    assert f"{loop}: the results there cannot be read now" in caplog.text
    assert str(file) not in caplog.text
    # They have not agreed.
    loop.unlink()
    lay(loop, "b")
    assert commit_missing(repository, paths, MACHINE) == 1
    assert kept(repository) == {"first", "a", "b"}


def test_a_promise_survives_the_removal_of_another_one(
    paths: ProjectPaths,
) -> None:
    with promise_to_commit(paths, MACHINE):
        place = find_lock_settings(paths.machine(MACHINE)).paths.project(paths.directory).promises
        # It is listed, and not there when it is looked at.
        gone = place / "gone"
        gone.symlink_to("nowhere")
        with promise_to_commit(paths, MACHINE):
            gone.unlink()
            assert len(list(place.iterdir())) == 2


def test_syncing_commits_and_counts_results_that_no_commit_has(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    initialise(repository, tmp_path / "artifacts")
    delete_branch(repository)
    report = synchronise(repository, paths, MACHINE)
    assert (report.results, report.missed, report.commits) == (0, 1, 1)
    assert kept(repository, "kochi_artifacts") == {"first"}
    assert synchronise(repository, paths, MACHINE).missed == 0


def test_a_branch_deleted_after_its_merge_continues_from_there_without_a_conflict(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    initialise(repository, tmp_path / "artifacts")
    synchronise(repository, paths, MACHINE)
    delete_branch(repository)
    assert commit_missing(repository, paths, MACHINE) == 0
    journal(paths, MACHINE, lay(repository, "again", "first.log"))
    assert commit_pending(repository, paths, MACHINE) == 1
    assert synchronise(repository, paths, MACHINE).commits == 1
    assert (tmp_path / "artifacts" / MACHINE / "first.log").read_text() == "again"
