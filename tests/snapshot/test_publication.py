"""The code of results, in refs of the user's repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from git_helpers import BAD_NAME, commit_to_new_repository, files_of, git, visible, write

from snakemake_kochi.artifacts.code import unpublished
from snakemake_kochi.errors import GitError
from snakemake_kochi.snapshot import (
    Snapshot,
    freeze,
    has_tree,
    list_entries,
    materialise,
    publish_commit,
    publish_mirror,
    publish_snapshot,
    restore_code,
)


def ref(name: str) -> str:
    return f"refs/kochi/code/{name}"


def frozen(repository: Path, store: Path) -> Snapshot:
    """A snapshot that is published."""
    snapshot = freeze(repository, store)
    publish_snapshot(repository, ref(snapshot.tree), store, snapshot.tree, snapshot.base)
    return snapshot


def checked_out(repository: Path, name: str, place: Path) -> dict[str, tuple[str, bytes]]:
    git(repository, "worktree", "add", "--detach", str(place), ref(name))
    return {path: found for path, found in files_of(place).items() if path != ".git"}


def test_uncommitted_and_untracked_files_are_published_on_top_of_the_commit(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    write(repository / "main.c", "changed\n")
    write(repository / "new" / BAD_NAME, b"\0\r\n")
    (repository / "link").symlink_to("main.c")
    write(repository / "run.sh", "#!/bin/sh\n").chmod(0o755)
    (repository / "src" / "a.c").unlink()
    before = visible(repository)
    snapshot = frozen(repository, store)
    assert git(repository, "rev-parse", f"{ref(snapshot.tree)}^").strip() == snapshot.base
    assert checked_out(repository, snapshot.tree, tmp_path / "copy") == before


def test_publishing_changes_neither_branches_nor_index_nor_files(
    repository: Path, store: Path
) -> None:
    write(repository / "main.c", "changed\n")
    git(repository, "config", "commit.gpgsign", "true")
    hook = repository / ".git" / "hooks" / "reference-transaction"
    write(hook, "#!/bin/sh\nexit 1\n").chmod(0o755)

    def state() -> list[object]:
        words = (("status", "--porcelain=v2", "--branch"), ("stash", "list"), ("reflog", "--all"))
        index = (repository / ".git" / "index").read_bytes()
        heads = git(repository, "for-each-ref", "refs/heads", "refs/tags", "refs/remotes")
        return [*(git(repository, "--no-optional-locks", *each) for each in words), index, heads]

    before = state()
    frozen(repository, store)
    assert state() == before
    git(repository, "fsck", "--strict")


def test_a_clean_working_tree_is_published_as_its_commit(repository: Path, store: Path) -> None:
    snapshot = frozen(repository, store)
    assert git(repository, "rev-parse", ref(snapshot.tree)).strip() == snapshot.base


def test_publishing_again_changes_nothing_and_two_clones_publish_the_same_commit(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "--quiet", str(repository), "clone")
    commits = set()
    for each in (repository, tmp_path / "clone", repository):
        write(each / "main.c", "changed\n")
        snapshot = frozen(each, store)
        commits.add(git(each, "rev-parse", ref(snapshot.tree)))
    assert len(commits) == 1
    assert unpublished(repository, [snapshot.tree, "0" * 40]) == {"0" * 40}


def test_a_repository_without_a_commit_is_published(store: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "empty")
    write(tmp_path / "empty" / "a.c", "a\n")
    snapshot = frozen(tmp_path / "empty", store)
    assert git(tmp_path / "empty", "show", f"{ref(snapshot.tree)}:a.c") == "a\n"


def test_uncommitted_secrets_are_left_out_and_committed_ones_stay_as_they_were(
    repository: Path, store: Path
) -> None:
    write(repository / "test" / "server.key", "for tests\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=key")
    write(repository / "test" / "server.key", "the real one\n")
    write(repository / ".env", "TOKEN=1\n")
    write(repository / "main.c", "changed\n")
    snapshot = frozen(repository, store)
    published = ref(snapshot.tree)
    assert git(repository, "show", f"{published}:test/server.key") == "for tests\n"
    assert git(repository, "show", f"{published}:main.c") == "changed\n"
    assert ".env" not in git(repository, "ls-tree", "-r", "--name-only", published).splitlines()
    message = git(repository, "log", "-1", "--format=%B", published)
    assert "left out: .env\n" in message
    assert "left out: test/server.key\n" in message
    kept = git(repository, "hash-object", "test/server.key").strip()
    with pytest.raises(Exception, match="returned non-zero"):
        git(repository, "cat-file", "-e", kept)


def test_files_that_servers_refuse_are_left_out(repository: Path, store: Path) -> None:
    with write(repository / "data.bin", "").open("r+b") as file:
        file.truncate(100 * 2**20 + 1)
    snapshot = frozen(repository, store)
    # Without this file, the code is that of the commit.
    assert git(repository, "rev-parse", ref(snapshot.tree)).strip() == snapshot.base


def test_a_base_that_is_gone_is_an_error_and_leaves_no_ref(repository: Path, store: Path) -> None:
    write(repository / "main.c", "changed\n")
    snapshot = freeze(repository, store)
    with pytest.raises(GitError):
        publish_snapshot(repository, ref(snapshot.tree), store, snapshot.tree, "1" * 40)
    assert unpublished(repository, [snapshot.tree])


def test_shallow_and_partial_clones_publish(repository: Path, store: Path, tmp_path: Path) -> None:
    write(repository / "main.c", "second\n")
    git(repository, "commit", "--quiet", "--all", "--message=second")
    git(repository, "config", "uploadpack.allowFilter", "true")
    for option in ("--depth=1", "--filter=blob:none"):
        name = option.partition("=")[0].strip("-")
        git(tmp_path, "clone", "--quiet", option, f"file://{repository}", name)
        write(tmp_path / name / "main.c", f"{name}\n")
        snapshot = frozen(tmp_path / name, store)
        assert git(tmp_path / name, "show", f"{ref(snapshot.tree)}:main.c") == f"{name}\n"


def test_only_new_objects_are_added(
    repository: Path, store: Path, count_objects: Callable[[Path], int]
) -> None:
    for number in range(20):
        write(repository / "many" / f"{number}.c", f"{number}\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=many")
    write(repository / "many" / "3.c", "changed\n")
    before = count_objects(repository)
    frozen(repository, store)
    # The file, its directory, the top, and the commit.
    assert count_objects(repository) == before + 4


def test_the_sources_of_recipes_are_published_without_their_history(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    other = tmp_path / "library"
    commit = commit_to_new_repository(other, "server.key", "for tests\n")
    publish_commit(repository, ref(commit), other, commit, "library:one")
    write(other / "b.c", "uncommitted\n")
    snapshot = freeze(other, store)
    source = {"mirror": str(other), "tree": snapshot.tree, "base": commit}
    publish_mirror(repository, ref(snapshot.tree), store, source, "library:two")
    for name, files in ((commit, {"server.key"}), (snapshot.tree, {"server.key", "b.c"})):
        listed = git(repository, "ls-tree", "-r", "--name-only", ref(name)).splitlines()
        assert set(listed) == files
        assert git(repository, "rev-list", "--count", ref(name)).strip() == "1"
    git(repository, "fsck", "--strict")


def test_a_mirror_that_is_gone_is_published_from_its_snapshot(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    write(tmp_path / "files" / "a.c", "a\n")
    snapshot = freeze(tmp_path / "files", store)
    source = {"mirror": str(tmp_path / "gone"), "tree": snapshot.tree, "base": ""}
    publish_mirror(repository, ref(snapshot.tree), store, source, "library:two")
    assert git(repository, "show", f"{ref(snapshot.tree)}:a.c") == "a\n"


def test_snapshots_cost_no_more_than_commits_of_the_same_files(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    for number in range(300):
        write(repository / f"d{number % 30}" / f"{number}.c", f"{number}\n" * 50)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=many")
    git(tmp_path, "clone", "--quiet", str(repository), "committed")

    def added(directory: Path, keep: Callable[[], object]) -> int:
        before = size(directory)
        for number in range(10):
            for changed in range(5):
                name = 7 * number + changed
                write(directory / f"d{name % 30}" / f"{name}.c", f"changed {number}\n" * 50)
            write(directory / "untracked.c", f"{number}\n" * 50)
            keep()
        return size(directory) - before

    def commit() -> None:
        git(tmp_path / "committed", "add", "--all")
        git(tmp_path / "committed", "commit", "--quiet", "--message=work")

    ours = added(repository, lambda: frozen(repository, store))
    assert ours <= 1.05 * added(tmp_path / "committed", commit)


def size(repository: Path) -> int:
    """The bytes of the files in a repository's `.git`, without the index and the logs of refs."""
    counted = [repository / ".git" / name for name in ("objects", "refs")]
    files = (path for each in counted for path in each.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("options", [(), ("--depth=1",), ("--filter=blob:none",)])
def test_published_code_is_restored_in_any_clone_without_what_was_left_out(
    repository: Path, store: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    write(repository / "main.c", "changed\n")
    write(repository / "new" / BAD_NAME, b"\0\r\n")
    (repository / "link").symlink_to("main.c")
    expected = visible(repository)
    write(repository / ".env", "TOKEN=1\n")
    snapshot = frozen(repository, store)
    git(repository, "config", "uploadpack.allowFilter", "true")
    clone, own = tmp_path / "clone", tmp_path / "own.git"
    git(tmp_path, "clone", "--quiet", *options, f"file://{repository}", str(clone))
    with pytest.raises(GitError, match="kochi artifact fetch"):
        restore_code(clone, ref(snapshot.tree), own)
    git(clone, "fetch", "--quiet", "origin", "refs/kochi/*:refs/kochi/*")
    before = git(clone, "for-each-ref")
    tree, left_out = restore_code(clone, ref(snapshot.tree), own)
    assert left_out == [".env"]
    assert has_tree(own, tree) and not has_tree(own, snapshot.tree)
    materialise(own, tree, tmp_path / "copy")
    assert files_of(tmp_path / "copy") == expected
    assert git(clone, "for-each-ref") == before


def test_code_whose_restoration_was_killed_is_restored_again(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    snapshot, own = frozen(repository, store), tmp_path / "own.git"
    tree, _ = restore_code(repository, ref(snapshot.tree), own)
    # As if the process had been killed: the tree is there, some of its files and the ref are not.
    blob = list_entries(own, tree)[0].object
    (own / "objects" / blob[:2] / blob[2:]).unlink()
    (own / "refs" / "snapshots" / tree).unlink()
    assert not has_tree(own, tree)
    restore_code(repository, ref(snapshot.tree), own)
    materialise(own, tree, tmp_path / "copy")
    assert files_of(tmp_path / "copy") == visible(repository)
