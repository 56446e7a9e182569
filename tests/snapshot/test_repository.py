"""Git in a copy of a snapshot says what it says in the working tree, and touches nothing of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from snakemake_kochi.errors import KochiError
from snakemake_kochi.phases.products import give_repository
from snakemake_kochi.snapshot import freeze, keep_repository, materialise, renew

from .git_helpers import files_of, git, write

QUESTIONS = (
    "describe --always --dirty",
    "describe --tags --long",
    "rev-parse HEAD",
    "rev-parse --abbrev-ref HEAD",
    "rev-parse --show-object-format",
    "log -1 --format=%H%s",
    "log --oneline",
    "status --porcelain",
    "tag",
    "diff",
)


def answers(directory: Path) -> dict[str, tuple[int, str]]:
    asked = {}
    for question in QUESTIONS:
        done = subprocess.run(
            ["git", "--no-optional-locks", *question.split()],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        asked[question] = done.returncode, done.stdout
    return asked


def copy_of(top: Path, store: Path, exclude: tuple[str, ...] = ()) -> Path:
    snapshot = freeze(top, store, exclude)
    kept = keep_repository(top, store, lambda digest: store.parent / "kept" / digest, exclude)
    copy = store.parent / "copy"
    materialise(store, snapshot.tree, copy)
    give_repository(None if kept is None else str(kept), copy)
    return copy


def change(top: Path) -> None:
    git(top, "tag", "-a", "v1", "-m", "first")
    git(top, "tag", "light")
    write(top / "more.c", "more\n")
    git(top, "add", "more.c")
    git(top, "commit", "-qm", "more")
    write(top / "staged.c", "staged\n")
    git(top, "add", "staged.c")
    write(top / "more.c", "changed\n")
    write(top / "untracked.c", "new\n")
    write(top / ".git" / "info" / "exclude", "hidden.c\n")
    write(top / "hidden.c", "hidden\n")


@pytest.mark.parametrize("kind", ["clean", "changed", "detached", "worktree", "shallow", "sha256"])
def test_git_answers_in_a_copy_as_in_the_working_tree(
    kind: str, repository: Path, store: Path, tmp_path: Path, untouched: Callable[[Path], object]
) -> None:
    top = repository
    if kind == "changed":
        change(top)
    elif kind == "detached":
        git(top, "tag", "-a", "v1", "-m", "first")
        git(top, "checkout", "-q", "--detach")
    elif kind == "worktree":
        top = tmp_path / "elsewhere"
        git(repository, "worktree", "add", "-q", "-b", "other", str(top))
        write(top / "untracked.c", "new\n")
    elif kind == "shallow":
        git(repository, "commit", "-qm", "second", "--allow-empty")
        top = tmp_path / "elsewhere"
        git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", str(top))
    elif kind == "sha256":
        top = tmp_path / "elsewhere"
        git(tmp_path, "init", "-q", "--object-format=sha256", str(top))
        write(top / "a.c", "a\n")
        git(top, "add", "-A")
        git(top, "commit", "-qm", "first")
    expected = answers(top)
    untouched(repository)
    assert answers(copy_of(top, store)) == expected
    assert expected["rev-parse HEAD"][0] == 0


def test_git_answers_in_a_copy_of_a_repository_without_commits(tmp_path: Path, store: Path) -> None:
    top = tmp_path / "new"
    git(tmp_path, "init", "-q", str(top))
    write(top / "a.c", "a\n")
    expected = answers(top)
    assert answers(copy_of(top, store)) == expected
    assert expected["describe --always --dirty"][0] != 0


def test_a_directory_in_no_repository_has_copies_without_one(tmp_path: Path, store: Path) -> None:
    write(tmp_path / "plain" / "a.c", "a\n")
    assert not (copy_of(tmp_path / "plain", store) / ".git").exists()


def test_a_repository_whose_path_has_a_line_break_is_refused(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    top = repository.rename(tmp_path / "two\nlines")
    with pytest.raises(KochiError, match=r"has a line break: '.*two\\nlines'") as raised:
        keep_repository(top, store, lambda digest: store.parent / "kept" / digest)
    assert raised.value.hint is not None and "Rename it" in raised.value.hint
    assert not list((store.parent / "kept").glob("*"))


def test_what_a_snapshot_leaves_out_counts_as_unchanged(repository: Path, store: Path) -> None:
    write(repository / "results" / "r.txt", "r\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "results")
    copy = copy_of(repository, store, ("/results/",))
    assert not (copy / "results").exists()
    assert git(copy, "status", "--porcelain") == ""


def test_git_in_a_submodule_of_a_copy_answers_for_the_submodule(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    git(tmp_path, "init", "-q", str(library))
    write(library / "l.c", "l\n")
    git(library, "add", "-A")
    git(library, "commit", "-qm", "of the library")
    git(library, "tag", "-a", "library-1", "-m", "1")
    git(repository, "submodule", "add", "-q", str(library), "third")
    git(repository, "commit", "-qam", "with a submodule")
    copy = copy_of(repository, store)
    assert git(copy / "third", "describe", "--dirty").strip() == "library-1"
    assert answers(copy) == answers(repository)
    # As many makefiles do where there is a `.git`; nothing is fetched for it.
    library.rename(tmp_path / "moved")
    git(copy, "submodule", "update", "--init")
    assert git(copy / "third", "describe", "--dirty").strip() == "library-1"
    write(repository / "third" / "l.c", "changed\n")
    kept = keep_repository(repository, store, lambda digest: store.parent / "kept" / digest)
    write(copy / "third" / "l.c", "changed\n")
    give_repository(str(kept), copy)
    assert answers(copy) == answers(repository)
    give_repository(None, copy)
    assert not [*copy.rglob(".git")]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_a_script_made_of_a_copys_git_is_replaced(
    kind: str, repository: Path, store: Path, tmp_path: Path
) -> None:
    copy = copy_of(repository, store)
    (copy / ".git").rename(tmp_path / "moved")
    if kind == "file":
        write(copy / ".git", f"gitdir: {tmp_path / 'moved'}\n")
    else:
        (copy / ".git").symlink_to(tmp_path / "moved")
    kept = keep_repository(repository, store, lambda digest: store.parent / "kept" / digest)
    give_repository(str(kept), copy)
    assert answers(copy) == answers(repository)
    assert (tmp_path / "moved" / "HEAD").exists()


def test_a_copy_of_an_older_snapshot_becomes_one_of_the_present_but_for_what_was_made_in_it(
    tmp_path: Path, store: Path
) -> None:
    top, copy = tmp_path / "top", tmp_path / "copy"
    for name in ("same", "edited", "gone", "made", "directory/deep", "file"):
        write(top / name, f"{name}\n")
    (top / "link").symlink_to("same")
    was = freeze(top, store).tree
    materialise(store, was, copy)
    write(copy / "made", "by the build\n")
    write(copy / "new", "by the build\n")
    write(copy / "product", "by the build\n")
    (copy / "outside").symlink_to(tmp_path)
    write(top / "edited", "now\n").chmod(0o755)
    write(top / "made", "now\n")
    write(top / "new", "now\n")
    write(top / "outside" / "x", "now\n")
    for name in ("gone", "directory/deep", "file", "link"):
        (top / name).unlink()
    (top / "directory").rmdir()
    write(top / "directory", "a file\n")
    write(top / "file" / "below", "now\n")
    (top / "link").symlink_to("edited")
    renew(store, was, freeze(top, store).tree, copy)
    products = dict.fromkeys(("made", "new", "product"), ("file", b"by the build\n"))
    expected = {name: entry for name, entry in files_of(top).items() if "outside" not in name}
    found = files_of(copy)
    assert found.pop("outside") == ("link", str(tmp_path).encode())
    assert found == expected | products
    assert not (tmp_path / "x").exists()


def test_git_in_a_copy_writes_to_the_copy_alone_and_runs_nothing_of_the_repositorys(
    repository: Path, store: Path, tmp_path: Path, untouched: Callable[[Path], object]
) -> None:
    ran = tmp_path / "ran"
    hook = write(repository / ".git" / "hooks" / "post-commit", f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    for key in ("core.fsmonitor", "filter.x.clean", "filter.x.smudge", "diff.x.textconv"):
        git(repository, "config", key, f"touch {ran}; cat")
    write(repository / ".gitattributes", "*.c filter=x diff=x\n")
    untouched(repository)
    ran.unlink(missing_ok=True)  # by the user's own git, which that asks
    copy = copy_of(repository, store)
    assert not ran.exists()
    git(copy, "status")
    git(copy, "diff")
    git(copy, "add", "-A")
    git(copy, "commit", "-qm", "mine", "--allow-empty")
    git(copy, "tag", "mine")
    git(copy, "gc", "-q")
    assert not ran.exists()
    again = store.parent / "again"
    snapshot = freeze(repository, store)
    materialise(store, snapshot.tree, again)
    kept = keep_repository(repository, store, lambda digest: store.parent / "kept" / digest)
    give_repository(str(kept), again)
    assert git(again, "tag") == ""
