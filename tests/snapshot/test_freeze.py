from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from git_helpers import BAD_NAME, files_of, git, write

from snakemake_kochi.errors import ConfigError, GitError, KochiError, NameNotFoundError
from snakemake_kochi.snapshot import (
    digest_sources,
    freeze,
    list_entries,
    materialise,
    read_file,
    toplevel,
)

Watch = Callable[[Path], None]


def names(store: Path, tree: str) -> set[str]:
    return {entry.path for entry in list_entries(store, tree)}


def test_every_file_of_a_working_tree_comes_back_byte_for_byte(
    torture: tuple[Path, dict[str, tuple[str, bytes]]],
    store: Path,
    tmp_path: Path,
    untouched: Watch,
) -> None:
    top, expected = torture
    untouched(top)
    untouched(top / "lib")
    (tmp_path / "hook-ran").unlink(missing_ok=True)  # by the user's own git, above
    snapshot = freeze(top, store)
    materialise(store, snapshot.tree, tmp_path / "workspace")
    assert files_of(tmp_path / "workspace") == expected
    assert snapshot.base == git(top, "rev-parse", "HEAD").strip()
    assert snapshot.dirty
    assert freeze(top, store) == snapshot
    assert not (tmp_path / "hook-ran").exists()


def test_the_expected_files_of_the_torture_repository_are_those_meant(
    torture: tuple[Path, dict[str, tuple[str, bytes]]],
) -> None:
    expected = torture[1]
    assert expected["both.c"] == ("file", b"staged, then changed\r\n")
    assert expected["mode.sh"][0] == "executable"
    assert expected["dangling"] == ("link", b"nowhere/at all")
    assert expected["lib/lib.c"][1] == b"changed in the submodule\n"
    assert {"kept.o", "intended.c", "new\nline.c", BAD_NAME, "nested/n.c"} <= set(expected)
    assert not {"deleted.c", "ignored.o", "dir_to_link/x.c", "lib/x.log"} & set(expected)


def test_a_clean_tree_is_not_dirty_and_one_changed_byte_makes_it_so(
    repository: Path, store: Path
) -> None:
    clean = freeze(repository, store)
    assert not clean.dirty
    write(repository / "src" / "a.c", "b\n")
    changed = freeze(repository, store)
    assert changed.dirty
    assert changed.tree != clean.tree
    assert changed.base == clean.base


def test_an_untracked_file_alone_makes_a_snapshot_dirty(repository: Path, store: Path) -> None:
    write(repository / "new.c", "")
    assert freeze(repository, store).dirty


def test_excluded_files_make_a_snapshot_neither_dirty_nor_larger(
    repository: Path, store: Path
) -> None:
    before = freeze(repository, store)
    write(repository / "results" / "local" / "x.log", "result\n")
    write(repository / "main.c", "changed, but excluded\n")
    snapshot = freeze(repository, store, ["/results/", "/main.c"])
    assert not snapshot.dirty
    assert names(store, snapshot.tree) == names(store, before.tree) - {"main.c"}


def test_a_nested_directory_of_an_excluded_name_stays(repository: Path, store: Path) -> None:
    write(repository / "src" / "results" / "r.c", "source\n")
    assert "src/results/r.c" in names(store, freeze(repository, store, ["/results/"]).tree)


def test_a_file_changed_at_the_same_size_and_time_is_noticed(repository: Path, store: Path) -> None:
    file = repository / "src" / "a.c"
    first = freeze(repository, store)
    stamp = file.stat()
    with open(file, "r+b") as stream:
        stream.write(b"b")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert read_file(store, freeze(repository, store).tree, "src/a.c") == b"b\n"
    assert read_file(store, first.tree, "src/a.c") == b"a\n"


def test_a_file_ignored_or_deleted_later_leaves_the_next_snapshot(
    repository: Path, store: Path
) -> None:
    write(repository / "new.txt", "x")
    assert "new.txt" in names(store, freeze(repository, store).tree)
    write(repository / ".gitignore", "new.txt\n")
    (repository / "main.c").unlink()
    assert names(store, freeze(repository, store).tree) == {".gitignore", "src/a.c"}


def test_line_endings_filters_and_encodings_are_left_alone(
    repository: Path, store: Path, tmp_path: Path, untouched: Watch
) -> None:
    write(
        repository / ".gitattributes",
        "* text=auto eol=crlf\n*.key filter=absent ident\n*.u16 working-tree-encoding=UTF-16\n",
    )
    git(repository, "config", "filter.absent.clean", "/nonexistent")
    git(repository, "config", "filter.absent.required", "true")
    contents = {
        "crlf.txt": b"a\r\nb\r\n",
        "lf.txt": b"a\nb\n",
        "x.key": b"$Id$\r\n",
        "t.u16": "text\n".encode("utf-16"),
    }
    for name, content in contents.items():
        write(repository / name, content)
    git(repository, "add", "crlf.txt", "lf.txt", "t.u16")
    untouched(repository)
    snapshot = freeze(repository, store)
    materialise(store, snapshot.tree, tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in contents} == contents


def test_a_repository_without_a_commit_can_be_frozen(tmp_path: Path, store: Path) -> None:
    git(tmp_path, "init", "--quiet", "new")
    write(tmp_path / "new" / "a", "a")
    snapshot = freeze(tmp_path / "new", store)
    assert snapshot.base is None
    assert snapshot.dirty
    assert names(store, snapshot.tree) == {"a"}


def test_an_empty_repository_is_an_empty_snapshot(tmp_path: Path, store: Path) -> None:
    git(tmp_path, "init", "--quiet", "new")
    tree = freeze(tmp_path / "new", store).tree
    assert list_entries(store, tree) == ()
    materialise(store, tree, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_merge_in_conflict_can_be_frozen(repository: Path, store: Path, untouched: Watch) -> None:
    git(repository, "checkout", "--quiet", "-b", "other")
    write(repository / "main.c", "theirs\n")
    git(repository, "commit", "--quiet", "--all", "--message=theirs")
    git(repository, "checkout", "--quiet", "main")
    write(repository / "main.c", "ours\n")
    git(repository, "commit", "--quiet", "--all", "--message=ours")
    with pytest.raises(Exception, match="returned non-zero"):
        git(repository, "merge", "other")
    untouched(repository)
    snapshot = freeze(repository, store)
    assert b"<<<<<<<" in read_file(store, snapshot.tree, "main.c")
    assert snapshot.dirty


def test_a_subdirectory_is_frozen_on_its_own(repository: Path, store: Path) -> None:
    write(repository / "main.c", "changed outside\n")
    snapshot = freeze(repository / "src", store)
    assert names(store, snapshot.tree) == {"a.c"}
    assert not snapshot.dirty
    write(repository / "src" / "a.c", "changed inside\n")
    assert freeze(repository / "src", store).dirty


def test_a_directory_that_its_repository_ignores_is_frozen_whole(
    repository: Path, store: Path
) -> None:
    write(repository / "build" / "third_party" / "x.o", "x")
    snapshot = freeze(repository / "build", store)
    assert names(store, snapshot.tree) == {"third_party/x.o"}


def test_a_directory_outside_any_repository_is_frozen_whole(
    tmp_path: Path, repository: Path, store: Path
) -> None:
    plain = tmp_path / "plain"
    write(plain / "a.o", "a")
    write(plain / "deep" / "b", "b")
    (plain / "link").symlink_to("deep")
    shutil.copytree(repository, plain / "clone")
    write(plain / "clone" / "ignored.o", "x")
    snapshot = freeze(plain, store)
    assert names(store, snapshot.tree) == {
        *("a.o", "deep/b", "link"),
        *("clone/.gitignore", "clone/main.c", "clone/src/a.c"),
    }
    assert snapshot.base is None


def test_a_copied_submodule_whose_repository_is_gone_is_a_plain_directory(
    repository: Path, store: Path
) -> None:
    write(repository / "copy" / ".git", "gitdir: ../nowhere\n")
    write(repository / "copy" / "c.c", "c")
    assert "copy/c.c" in names(store, freeze(repository, store).tree)


def test_flags_that_hide_changes_from_git_hide_none_from_a_snapshot(
    repository: Path, store: Path
) -> None:
    git(repository, "update-index", "--assume-unchanged", "main.c")
    git(repository, "update-index", "--skip-worktree", "src/a.c")
    write(repository / "main.c", "hidden change\n")
    write(repository / "src" / "a.c", "hidden change\n")
    tree = freeze(repository, store).tree
    assert read_file(store, tree, "main.c") == read_file(store, tree, "src/a.c")


def test_a_sparse_checkout_is_frozen_as_it_stands(
    repository: Path, store: Path, untouched: Watch
) -> None:
    git(repository, "sparse-checkout", "set", "--sparse-index", "elsewhere")
    untouched(repository)
    assert names(store, freeze(repository, store).tree) == {".gitignore", "main.c"}


def test_a_linked_worktree_and_a_shallow_clone_can_be_frozen(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "linked"), "-b", "linked")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", "shallow")
    trees = {freeze(place, store).tree for place in (tmp_path / "linked", tmp_path / "shallow")}
    assert trees == {freeze(repository, store).tree}


def test_a_snapshot_outlives_the_repository_it_was_taken_from(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    tree = freeze(repository, store).tree
    shutil.rmtree(repository)
    git(store, "gc", "--quiet", "--prune=now")
    materialise(store, tree, tmp_path / "out")
    assert (tmp_path / "out" / "src" / "a.c").read_text() == "a\n"


def test_freezing_the_same_files_again_adds_nothing_to_the_store(
    repository: Path, store: Path
) -> None:
    first = freeze(repository, store)
    before = set(files_of(store))
    (repository / "main.c").touch()
    assert freeze(repository, store) == first
    assert set(files_of(store)) == before


@pytest.mark.parametrize("damage", [b"", b"DIRC not really"])
def test_a_damaged_stat_cache_costs_time_only(repository: Path, store: Path, damage: bytes) -> None:
    first = freeze(repository, store)
    (cache,) = (store / "indexes").iterdir()
    cache.write_bytes(damage)
    assert freeze(repository, store) == first


def test_a_lock_file_left_by_a_killed_git_does_not_block(repository: Path, store: Path) -> None:
    tree = freeze(repository, store).tree
    git(store, "update-ref", "-d", f"refs/snapshots/{tree}")
    write(store / "refs" / "snapshots" / f"{tree}.lock", "")
    assert freeze(repository, store).tree == tree
    assert git(store, "for-each-ref").count("refs/snapshots/") == 1


def _freeze_into(repository: Path, store: Path, trees: multiprocessing.Queue[str]) -> None:
    trees.put(freeze(repository, store).tree)


def test_several_processes_may_freeze_into_a_store_that_is_not_there_yet(
    repository: Path, store: Path
) -> None:
    trees: multiprocessing.Queue[str] = multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=_freeze_into, args=(repository, store, trees))
        for _ in range(6)
    ]
    for process in processes:
        process.start()
    found = {trees.get(timeout=50) for _ in processes}
    for process in processes:
        process.join()
    assert found == {freeze(repository, store).tree}


def test_git_variables_of_a_surrounding_hook_lead_nowhere(
    repository: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = freeze(repository, store)
    git(tmp_path, "init", "--quiet", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
    assert freeze(repository, store) == expected


def test_a_directory_that_is_not_there_is_named(repository: Path, store: Path) -> None:
    write(repository / "becoming.c", "x")
    (repository / "becoming.c").unlink()
    with pytest.raises(KochiError, match="no such directory"):
        freeze(repository / "becoming.c", store)


def test_materialising_twice_to_one_place_is_refused_and_changes_nothing(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    tree = freeze(repository, store).tree
    write(tmp_path / "out" / "mine", "mine")
    with pytest.raises(KochiError, match="exists already"):
        materialise(store, tree, tmp_path / "out")
    with pytest.raises(GitError):
        materialise(store, "0" * 40, tmp_path / "other")
    assert set(files_of(tmp_path / "out")) == {"mine"}
    assert {path.name for path in tmp_path.iterdir()} == {"out", "project", "root"}


def test_a_materialised_directory_is_private(repository: Path, store: Path, tmp_path: Path) -> None:
    materialise(store, freeze(repository, store).tree, tmp_path / "a" / "out")
    assert (tmp_path / "a" / "out").stat().st_mode & 0o777 == 0o700
    assert store.stat().st_mode & 0o777 == 0o700


def test_a_missing_file_of_a_snapshot_is_answered_with_the_nearest(
    repository: Path, store: Path
) -> None:
    tree = freeze(repository, store).tree
    assert read_file(store, tree, "./src/a.c") == b"a\n"
    with pytest.raises(NameNotFoundError, match=r"did you mean 'main\.c'"):
        read_file(store, tree, "mian.c")


def test_the_top_of_a_repository_is_found_from_within_and_missed_with_a_hint(
    repository: Path, tmp_path: Path
) -> None:
    assert toplevel(repository / "src" / "a.c") == repository
    with pytest.raises(GitError, match="To make one, type at its top: git init"):
        toplevel(tmp_path)


def test_the_digest_of_sources_changes_with_what_the_patterns_mean_only(
    repository: Path, store: Path
) -> None:
    before = list_entries(store, freeze(repository, store).tree)
    for change, include, exclude, same in (
        ("README.md", ["*.c"], [], True),
        ("src/a.c", ["*.c"], [], False),
        ("src/a.c", ["src/**"], [], False),
        ("src/a.c", ["/*.c"], [], True),
        ("docs/x/y.txt", [], ["docs/"], True),
        ("docs/x/y.txt", [], ["/docs/*.md"], False),
        ("workflow/rules/a.smk", [], ["/workflow/", "*.md"], True),
    ):
        case = f"{change} with {include} without {exclude}"
        write(repository / change, case)
        entries = list_entries(store, freeze(repository, store).tree)
        digest = digest_sources(entries, include, exclude)
        assert (digest == digest_sources(before, include, exclude)) is same, case
        assert digest_sources(entries[::-1], include, exclude) == digest, case
        before = entries


def test_the_digest_of_sources_sees_names_and_modes(repository: Path, store: Path) -> None:
    digests = {digest_sources(list_entries(store, freeze(repository, store).tree))}
    (repository / "main.c").chmod(0o755)
    digests.add(digest_sources(list_entries(store, freeze(repository, store).tree)))
    (repository / "main.c").rename(repository / "Main.c")
    digests.add(digest_sources(list_entries(store, freeze(repository, store).tree)))
    assert len(digests) == 3


def test_a_bad_pattern_is_named(repository: Path, store: Path) -> None:
    with pytest.raises(ConfigError, match="pattern '!'"):
        freeze(repository, store, ["ok", "!"])
