from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from git_helpers import files_of, git, write
from support import run

from snakemake_kochi.artifacts.branches import discard, initialise, log, synchronise
from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal, pending
from snakemake_kochi.artifacts.published import branch_called as branch
from snakemake_kochi.errors import GitError, KochiError, NameNotFoundError
from snakemake_kochi.git import read_objects
from snakemake_kochi.paths import ProjectPaths

MACHINE = "local"
NO_HOOKS = ("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false")


def put(paths: ProjectPaths, identity: str, dest: str, machine: str = MACHINE) -> None:
    source = write(paths.directory / "work" / identity, identity)
    journal(paths, machine, Result(identity, {dest: source}, {}))


@pytest.fixture
def worktree(repository: Path, tmp_path: Path) -> Path:
    initialise(repository, tmp_path / "artifacts")
    return tmp_path / "artifacts"


def visible(worktree: Path) -> set[str]:
    return {path for path in files_of(worktree) if path != ".git" and "/.kochi/" not in path}


def test_initialising_makes_an_orphan_branch_in_a_clean_worktree(
    repository: Path, worktree: Path
) -> None:
    assert git(worktree, "status", "--porcelain") == ""
    assert git(worktree, "rev-list", "--count", "HEAD").strip() == "1"
    assert visible(worktree) == set()
    assert git(repository, "branch", "--show-current").strip() == "main"


def test_a_second_worktree_is_refused_with_the_path_of_the_first_and_how_to_move_it(
    repository: Path, worktree: Path, tmp_path: Path
) -> None:
    with pytest.raises(KochiError) as caught:
        initialise(repository, tmp_path / "the other")
    move = f"git worktree move {worktree} '{tmp_path}/the other'"
    assert str(caught.value) == (
        f"branch kochi_artifacts is checked out in {worktree} already\n"
        f"To collect results there, type: kochi artifact sync\nTo move that checkout: {move}"
    )
    run("bash", "-c", move, cwd=repository)
    assert (tmp_path / "the other" / ".git").exists()
    # Where it is already, nothing is to be moved.
    with pytest.raises(KochiError) as caught:
        initialise(repository, tmp_path / "the other")
    assert "git worktree move" not in str(caught.value)


def test_a_directory_that_is_not_empty_is_refused(repository: Path, tmp_path: Path) -> None:
    write(tmp_path / "full" / "x", "x")
    with pytest.raises(KochiError, match="an empty or a new directory"):
        initialise(repository, tmp_path / "full")
    assert "kochi_artifacts" not in git(repository, "for-each-ref")


def test_a_worktree_removed_by_hand_can_be_made_again_with_its_artifacts(
    repository: Path, paths: ProjectPaths, worktree: Path, tmp_path: Path
) -> None:
    put(paths, "a", "a.log")
    synchronise(repository, paths, MACHINE)
    worktree.rename(tmp_path / "moved-away")
    with pytest.raises(KochiError, match="kochi artifact init"):
        synchronise(repository, paths, MACHINE)
    initialise(repository, worktree)
    assert visible(worktree) == {"local/a.log"}


def test_a_second_clone_goes_on_from_the_remote_branch(
    repository: Path, worktree: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "--quiet", str(repository), "colleague")
    initialise(tmp_path / "colleague", tmp_path / "theirs")
    assert git(tmp_path / "theirs", "rev-parse", "HEAD") == git(worktree, "rev-parse", "HEAD")


def test_in_a_partial_clone_what_a_colleague_has_pushed_is_fetched_for_the_worktree(
    repository: Path, paths: ProjectPaths, worktree: Path, tmp_path: Path
) -> None:
    put(paths, "a", "a.log")
    synchronise(repository, paths, MACHINE)
    git(repository, "config", "uploadpack.allowFilter", "true")
    words = ("--filter=blob:none", f"file://{repository}", "colleague")
    git(tmp_path, "clone", "--quiet", *words)
    initialise(tmp_path / "colleague", tmp_path / "theirs")
    assert visible(tmp_path / "theirs") == {"local/a.log"}


def test_syncing_commits_the_journal_and_merges_each_machine(
    repository: Path,
    paths: ProjectPaths,
    worktree: Path,
    untouched: Callable[[], None],
) -> None:
    put(paths, "a", "a.log")
    put(paths, "b", "b.log", machine="spica")
    first = synchronise(repository, paths, MACHINE)
    assert (first.results, first.commits, first.directory) == (1, 1, worktree)
    assert synchronise(worktree, paths, "spica").results == 1
    assert visible(worktree) == {"local/a.log", "spica/b.log"}
    again = synchronise(repository, paths, MACHINE)
    assert (again.results, again.commits) == (0, 0)
    put(paths, "c", "c.log")
    commit_pending(repository, paths, MACHINE)
    later = synchronise(repository, paths, MACHINE)
    assert (later.results, later.commits) == (0, 1)
    assert later.commit == git(worktree, "rev-parse", "HEAD").strip()
    assert visible(worktree) == {"local/a.log", "local/c.log", "spica/b.log"}
    assert git(worktree, "status", "--porcelain") == ""
    assert (repository / "main.c").read_text() == "changed\n"


def test_syncing_a_machine_without_results_changes_nothing(
    repository: Path, paths: ProjectPaths, worktree: Path
) -> None:
    report = synchronise(repository, paths, "spica")
    assert (report.results, report.commits) == (0, 0)
    assert git(worktree, "rev-list", "--count", "HEAD").strip() == "1"


def test_syncing_before_init_says_what_to_type(repository: Path, paths: ProjectPaths) -> None:
    with pytest.raises(KochiError, match="kochi artifact init DIR"):
        synchronise(repository, paths, MACHINE)


def test_uncommitted_changes_in_the_worktree_are_named_and_kept(
    repository: Path, paths: ProjectPaths, worktree: Path
) -> None:
    put(paths, "a", "a.log")
    synchronise(repository, paths, MACHINE)
    write(worktree / "local" / "a.log", "edited")
    put(paths, "b", "b.log")
    with pytest.raises(KochiError, match=r"uncommitted changes, for example in local/a\.log"):
        synchronise(repository, paths, MACHINE)
    assert (worktree / "local" / "a.log").read_text() == "edited"
    git(worktree, *NO_HOOKS, "checkout", "--quiet", ".")
    assert synchronise(repository, paths, MACHINE).commits == 1


def test_a_conflict_leaves_the_worktree_as_it_was_and_names_the_file(
    repository: Path, paths: ProjectPaths, worktree: Path
) -> None:
    put(paths, "a", "a.log")
    synchronise(repository, paths, MACHINE)
    write(worktree / "local" / "a.log", "edited by hand")
    git(worktree, *NO_HOOKS, "commit", "--quiet", "--all", "--message=edited")
    before = git(worktree, "rev-parse", "HEAD")
    put(paths, "b", "a.log")
    with pytest.raises(GitError, match=r"both changed local/a\.log"):
        synchronise(repository, paths, MACHINE)
    assert git(worktree, "rev-parse", "HEAD") == before
    assert git(worktree, "status", "--porcelain") == ""
    assert (worktree / "local" / "a.log").read_text() == "edited by hand"
    assert pending(paths, MACHINE) == ()


def test_an_untracked_file_in_the_way_is_not_overwritten(
    repository: Path, paths: ProjectPaths, worktree: Path
) -> None:
    write(worktree / "local" / "a.log", "mine")
    put(paths, "a", "a.log")
    with pytest.raises(GitError, match=r"local/a\.log"):
        synchronise(repository, paths, MACHINE)
    assert (worktree / "local" / "a.log").read_text() == "mine"


def test_discarding_forgets_branch_and_journal_but_not_what_was_merged(
    repository: Path, paths: ProjectPaths, worktree: Path
) -> None:
    put(paths, "a", "a.log")
    synchronise(repository, paths, MACHINE)
    put(paths, "b", "b.log")
    commit_pending(repository, paths, MACHINE)
    put(paths, "c", "c.log")
    assert discard(repository, paths, MACHINE) == 3
    assert branch(MACHINE) not in git(repository, "for-each-ref")
    assert pending(paths, MACHINE) == ()
    assert visible(worktree) == {"local/a.log"}
    put(paths, "d", "d.log")
    assert synchronise(repository, paths, MACHINE).commits == 1
    assert visible(worktree) == {"local/a.log", "local/d.log"}


def test_discarding_an_unknown_machine_is_answered_with_the_nearest(
    repository: Path, paths: ProjectPaths
) -> None:
    put(paths, "a", "a.log")
    commit_pending(repository, paths, MACHINE)
    with pytest.raises(NameNotFoundError, match="did you mean 'local'"):
        discard(repository, paths, "locla")


def test_a_branch_that_is_checked_out_is_not_discarded(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    put(paths, "a", "a.log")
    commit_pending(repository, paths, MACHINE)
    place = str(tmp_path / "look")
    git(repository, *NO_HOOKS, "worktree", "add", "--quiet", place, branch(MACHINE))
    with pytest.raises(GitError, match=f"git worktree remove {place}"):
        discard(repository, paths, MACHINE)
    assert log(repository, MACHINE)[0].subject == "a: 1 result from local"


def test_the_log_shows_the_newest_commits_first(repository: Path, paths: ProjectPaths) -> None:
    for identity in ("a", "b", "c"):
        put(paths, identity, f"{identity}.log")
        put(paths, f"{identity}2", f"{identity}.csv")
        commit_pending(repository, paths, MACHINE)
    found = log(repository, MACHINE, limit=2)
    assert [commit.subject for commit in found] == ["2 results from local"] * 2
    assert found[0].commit == git(repository, "rev-parse", branch(MACHINE)).strip()
    with pytest.raises(NameNotFoundError):
        log(repository, "nowhere")


@pytest.mark.parametrize(
    "place", [".git/hooks/x", ".git/x/../y", "link/x", "bare/refs/x", "root", "root/a/b", ".GIT/x"]
)
def test_a_worktree_among_the_files_of_git_or_of_kochi_is_refused(
    repository: Path, tmp_path: Path, place: str
) -> None:
    git(repository, "init", "--quiet", "--bare", "bare")
    (repository / "link").symlink_to(".git/hooks")
    (repository / "root").mkdir()
    with pytest.raises(KochiError, match=f"kochi artifact init {repository}-artifacts") as caught:
        initialise(repository, repository / place, root=repository / "root")
    assert "KOCHI_ROOT" in str(caught.value) or "git keeps a repository" in str(caught.value)
    assert "kochi_artifacts" not in git(repository, "for-each-ref")
    assert git(repository, "worktree", "list").count("\n") == 1


def test_a_worktree_in_a_separate_git_directory_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--separate-git-dir=elsewhere", "project")
    with pytest.raises(KochiError, match="git keeps a repository"):
        initialise(tmp_path / "project", tmp_path / "elsewhere" / "x")


def test_objects_are_read_in_order_and_missing_ones_have_no_content(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path / "a b 5", "spaces\n")
    write(tmp_path / "empty", "")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "work")
    names = ["HEAD:a b 5", "HEAD:no 5", "0" * 40, "HEAD:empty", "HEAD:a b 5"]
    assert list(read_objects(tmp_path, names)) == [b"spaces\n", None, None, b"", b"spaces\n"]
