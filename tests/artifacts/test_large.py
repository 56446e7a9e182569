"""Large files are kept in the object store of git-lfs, with pointers in the artifact branch."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from git_helpers import BAD_NAME, git, write

from snakemake_kochi.artifacts.branches import initialise, synchronise
from snakemake_kochi.artifacts.committer import commit_missing, commit_pending
from snakemake_kochi.artifacts.content import read_artifacts, write_artifact
from snakemake_kochi.artifacts.journal import Result, journal, pending
from snakemake_kochi.artifacts.large import Pointer, Store, parse_pointer
from snakemake_kochi.artifacts.origin import newest_commit, origin_in_commit, origin_of_file
from snakemake_kochi.artifacts.remotes import fetch, fetch_content, push
from snakemake_kochi.errors import GitError, KochiError, MissingContentError, NameNotFoundError
from snakemake_kochi.paths import ProjectPaths, WorkingPaths

MACHINE = "local"
BRANCH = "kochi_artifacts_local"
LIMIT = 2000  # bytes
CONTENT = os.urandom(3 << 20)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def lfs(repository: Path, *words: str, stdin: bytes = b"") -> bytes:
    """A git-lfs command of the user."""
    return subprocess.run(
        ["git", "lfs", *words], cwd=repository, input=stdin, stdout=subprocess.PIPE, check=True
    ).stdout


def typed(repository: Path, *words: str) -> None:
    """A command of the user. The hooks of `repository` would refuse any change of a ref."""
    git(repository, "-c", "core.hooksPath=/dev/null", *words)


def commit_files(repository: Path, files: dict[str, bytes]) -> str:
    for path, content in files.items():
        write(repository / path, content)
    typed(repository, "add", "--all")
    typed(repository, "commit", "--quiet", "--no-gpg-sign", "-m", "files")
    return git(repository, "rev-parse", "HEAD").strip()


def lay(repository: Path, identity: str, files: dict[str, bytes]) -> Result:
    """Leave a result and its record in a working directory as a run does."""
    working = WorkingPaths(repository, MACHINE)
    artifacts = [
        {
            "type": "file",
            "dest": dest,
            "src": dest,
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        for dest, content in files.items()
    ]
    record: dict[str, Any] = {
        "identity": identity,
        "machine": MACHINE,
        "ended": datetime.now(UTC).isoformat(),
        "artifacts": artifacts,
    }
    sources = {dest: write(working.results / dest, content) for dest, content in files.items()}
    write(working.records / identity / "record.json", json.dumps(record))
    return Result(identity, sources, record)


def keep(repository: Path, paths: ProjectPaths, identity: str, **files: bytes) -> None:
    """Commit a result whose files have these names (with "__" for "/") and contents."""
    named = {dest.replace("__", "/"): content for dest, content in files.items()}
    journal(paths, MACHINE, lay(repository, identity, named), repository, LIMIT)
    assert commit_pending(repository, paths, MACHINE) == 1


def show(repository: Path, path: str, commit: str = BRANCH) -> bytes:
    """A file as the branch has it."""
    words = ("git", "cat-file", "blob", f"{commit}:local/{path}")
    return subprocess.run(words, cwd=repository, stdout=subprocess.PIPE, check=True).stdout


def attributes(repository: Path, directory: str = "") -> list[str]:
    return show(repository, f"{directory}.gitattributes").decode().splitlines()


def objects(repository: Path) -> list[str]:
    """The digests of the contents in the store."""
    return sorted(path.name for path in (repository / ".git/lfs/objects").glob("*/*/*"))


def content_of(repository: Path, path: str, commit: str = BRANCH) -> bytes:
    return next(stream.read() for _, stream in read_artifacts(repository, commit, [path]))


# ---- pointers and the store


def test_a_pointer_is_the_one_of_git_lfs(repository: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "file", CONTENT)
    pointer = Pointer(DIGEST, len(CONTENT))
    assert lfs(repository, "pointer", f"--file={file}") == pointer.text
    assert parse_pointer(pointer.text) == pointer


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
        Pointer(DIGEST, 5).text + b"\n",
        Pointer(DIGEST.upper(), 5).text,
        Pointer("../" + DIGEST[3:], 5).text,
        Pointer(DIGEST, -5).text,
    ],
)
def test_what_is_almost_a_pointer_is_none(content: bytes) -> None:
    assert parse_pointer(content) is None


def test_git_lfs_finds_what_the_store_keeps(repository: Path) -> None:
    pointer = Store.of(repository).put(io.BytesIO(CONTENT))
    assert pointer == Pointer(DIGEST, len(CONTENT))
    assert lfs(repository, "smudge", stdin=pointer.text) == CONTENT


def test_the_store_is_where_git_lfs_has_been_told(repository: Path, tmp_path: Path) -> None:
    git(repository, "config", "lfs.storage", str(tmp_path / "elsewhere"))
    pointer = Store.of(repository).put(io.BytesIO(CONTENT))
    assert (tmp_path / "elsewhere" / "objects" / DIGEST[:2] / DIGEST[2:4] / DIGEST).is_file()
    assert lfs(repository, "smudge", stdin=pointer.text) == CONTENT


def test_the_store_of_a_worktree_is_that_of_its_repository(
    repository: Path, tmp_path: Path
) -> None:
    typed(repository, "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"))
    assert Store.of(tmp_path / "tree") == Store.of(repository)


def test_a_full_disk_leaves_nothing_in_the_store(repository: Path) -> None:
    class Full(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 1 << 20:
                raise OSError(28, "No space left on device")
            return super().read(size)

    store = Store.of(repository)
    with pytest.raises(OSError, match="No space left"):
        store.put(Full(CONTENT))
    assert [path for path in store.directory.rglob("*") if path.is_file()] == []


def test_the_copy_of_a_killed_process_is_removed_after_a_day(repository: Path) -> None:
    store = Store.of(repository)
    store.put(io.BytesIO(b"first"))
    old, new = (write(store.directory / "tmp" / f"kochi-{age}", age) for age in ("old", "new"))
    foreign = write(store.directory / "tmp" / "foreign", "git-lfs has its own")
    for file in (old, foreign):
        os.utime(file, (time.time() - 2 * 86400,) * 2)
    store.put(io.BytesIO(b"second"))
    assert [file.exists() for file in (old, new, foreign)] == [False, True, True]


@pytest.mark.parametrize(("shared", "modes"), [("", (0o644, 0o755)), ("group", (0o664, 0o2775))])
def test_files_of_the_store_have_the_modes_of_the_repository(
    repository: Path, shared: str, modes: tuple[int, int]
) -> None:
    if shared:
        git(repository, "config", "core.sharedRepository", shared)
    before = os.umask(0o022)
    try:
        store = Store.of(repository)
        file = store.path(store.put(io.BytesIO(CONTENT)))
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == modes[0]
    assert {stat.S_IMODE(each.stat().st_mode) for each in list(file.parents)[:4]} == {modes[1]}


# ---- reading


def test_artifacts_of_a_commit_are_read_whether_they_are_large_or_not(repository: Path) -> None:
    pointer = Store.of(repository).put(io.BytesIO(CONTENT))
    files = {
        "m/large.bin": pointer.text,
        "m/small.log": b"small\n",
        "m/empty": b"",
        "m/line\nend": b"odd name\n",
        "m/blob.bin": CONTENT[:200_000],  # as an earlier release kept files of any size
    }
    commit = commit_files(repository, files)
    found = {}
    for path, stream in read_artifacts(repository, commit, [*files, "m/small.log"]):
        # Not all of them are read to their end.
        found[path] = stream.read(3) if path == "m/blob.bin" else stream.read()
    expected = files | {"m/large.bin": CONTENT, "m/blob.bin": CONTENT[:3]}
    assert found == expected
    streams = read_artifacts(repository, commit, ["m/blob.bin", "m/large.bin"])
    digests = [hashlib.file_digest(stream, "sha256").hexdigest() for _, stream in streams]
    assert digests == [hashlib.sha256(CONTENT[:200_000]).hexdigest(), DIGEST]


def test_a_content_that_is_not_in_this_clone_is_told_before_anything_is_read(
    repository: Path,
) -> None:
    pointers = {f"m/{number}.bin": Pointer(str(number) * 64, 20 << 20).text for number in range(3)}
    commit = commit_files(repository, {"m/small": b"small", **pointers})
    with pytest.raises(MissingContentError) as refused:
        next(read_artifacts(repository, commit, ["m/small", *pointers]))
    assert refused.value.paths == tuple(pointers)
    assert refused.value.message == (
        "m/0.bin and 2 more: large files, of which this clone has only pointers (60 MiB)"
    )
    assert f"kochi artifact fetch --at {commit} m/0.bin\n" in str(refused.value)


def test_a_truncated_content_counts_as_missing(repository: Path) -> None:
    store = Store.of(repository)
    pointer = store.put(io.BytesIO(CONTENT))
    os.truncate(store.path(pointer), 100)
    commit = commit_files(repository, {"m/large.bin": pointer.text})
    with pytest.raises(MissingContentError):
        next(read_artifacts(repository, commit, ["m/large.bin"]))


def test_bad_paths_and_commits_have_messages(repository: Path) -> None:
    commit = commit_files(repository, {"m/30.log": b"x"})
    with pytest.raises(NameNotFoundError, match=r"m/31\.log: no such file.*\n.*'m/30\.log'"):
        next(read_artifacts(repository, commit, ["m/31.log"]))
    with pytest.raises(NameNotFoundError, match="m: no such file"):
        next(read_artifacts(repository, commit, ["m"]))
    for bad in ("--output=x", "0" * 40):
        with pytest.raises(GitError):
            next(read_artifacts(repository, bad, ["m/30.log"]))
    identity = git(repository, "rev-parse", "HEAD:m/30.log").strip()
    (repository / ".git" / "objects" / identity[:2] / identity[2:]).unlink()
    with pytest.raises(GitError, match=r"m/30\.log: this clone has no object"):
        next(read_artifacts(repository, commit, ["m/30.log"]))


# ---- commits


def test_a_large_file_is_kept_once_and_the_branch_has_its_pointer(
    repository: Path, paths: ProjectPaths
) -> None:
    result = lay(repository, "first", {"fib/large.bin": CONTENT, "fib/small.log": b"small\n"})
    journal(paths, MACHINE, result, repository, LIMIT)
    in_journal = sum(path.stat().st_size for path in paths.journal(MACHINE).rglob("*"))
    assert in_journal < len(CONTENT) / 10
    # Somebody edits the file in place.
    with result.files["fib/large.bin"].open("r+b") as file:
        file.write(b"edited")
    assert commit_pending(repository, paths, MACHINE) == 1
    assert show(repository, "fib/large.bin") == Pointer(DIGEST, len(CONTENT)).text
    assert show(repository, "fib/small.log") == b"small\n"
    assert content_of(repository, "local/fib/large.bin") == CONTENT
    assert objects(repository) == [DIGEST]
    assert attributes(repository, "fib/") == [
        "/.gitattributes merge=union",
        "/large.bin filter=lfs diff=lfs merge=lfs -text",
    ]
    assert git(repository, "fsck", "--strict", "--no-dangling") == ""


def test_a_file_of_the_limit_is_not_large_and_results_of_a_limit_of_their_own_are(
    repository: Path, paths: ProjectPaths
) -> None:
    keep(repository, paths, "first", a=CONTENT[:LIMIT], b=CONTENT[: LIMIT + 1])
    assert show(repository, "a") == CONTENT[:LIMIT]
    assert len(show(repository, "b")) < 200
    result = lay(repository, "second", {"c": CONTENT})
    journal(paths, MACHINE, result, repository)  # 10 MiB
    commit_pending(repository, paths, MACHINE)
    assert show(repository, "c") == CONTENT


def test_a_checkout_with_git_lfs_has_the_files_and_one_without_has_pointers(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    keep(repository, paths, "first", fib__large=CONTENT, fib__small=b"small\n")
    typed(repository, "worktree", "add", "--quiet", str(tmp_path / "without"), BRANCH)
    assert (tmp_path / "without/local/fib/large").read_bytes().startswith(b"version https")
    typed(repository, "worktree", "remove", str(tmp_path / "without"))
    git(repository, "lfs", "install", "--skip-repo")
    typed(repository, "worktree", "add", "--quiet", str(tmp_path / "with"), BRANCH)
    assert (tmp_path / "with/local/fib/large").read_bytes() == CONTENT
    assert (tmp_path / "with/local/fib/small").read_bytes() == b"small\n"
    assert git(tmp_path / "with", "status", "--porcelain") == ""
    assert lfs(tmp_path / "with", "fsck") == b"Git LFS fsck OK\n"
    assert lfs(tmp_path / "with", "ls-files", "--long", "--name-only") == b"local/fib/large\n"


def test_a_file_that_is_not_large_any_more_loses_its_attributes(
    repository: Path, paths: ProjectPaths
) -> None:
    keep(repository, paths, "first", fib__a=CONTENT, fib__b=CONTENT)
    keep(repository, paths, "second", fib__a=b"small")
    union, b = "/.gitattributes merge=union", "/b filter=lfs diff=lfs merge=lfs -text"
    assert attributes(repository, "fib/") == [union, b]
    commit = git(repository, "rev-parse", f"{BRANCH}:local/fib/.gitattributes")
    keep(repository, paths, "third", fib__a=b"small again", other__b=b"small")
    assert git(repository, "rev-parse", f"{BRANCH}:local/fib/.gitattributes") == commit
    keep(repository, paths, "fourth", fib__b=b"small", a=CONTENT)
    listed = git(repository, "ls-tree", "-r", "--name-only", BRANCH).splitlines()
    assert [path for path in listed if path.endswith(".gitattributes")] == ["local/.gitattributes"]
    # An entry that excludes another has a commit of its own.
    for identity, files in (("x", {"a": CONTENT}), ("y", {"a": b"small"}), ("z", {"a": CONTENT})):
        journal(paths, MACHINE, lay(repository, identity, files), repository, LIMIT)
    assert commit_pending(repository, paths, MACHINE) == 3
    assert attributes(repository) == [union, "/a filter=lfs diff=lfs merge=lfs -text"]


def test_git_and_git_lfs_find_large_files_with_odd_names(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    names = ["a b", "#a", "!a", '"a"', "*", "?[x]", "a\\b", "ü", BAD_NAME, "a=b,c", "[attr]x"]
    files = {f"odd dir/{name}": CONTENT[:5000] + os.fsencode(name) for name in names}
    small = {"odd dir/b": b"small", "odd dir/x": b"small"}
    journal(paths, MACHINE, lay(repository, "first", files | small), repository, LIMIT)
    assert commit_pending(repository, paths, MACHINE) == 1
    git(repository, "lfs", "install", "--skip-repo")
    typed(repository, "worktree", "add", "--quiet", str(tmp_path / "with"), BRANCH)
    for dest, content in (files | small).items():
        assert (tmp_path / "with/local" / dest).read_bytes() == content
    assert lfs(tmp_path / "with", "fsck") == b"Git LFS fsck OK\n"


def test_a_line_that_the_user_wrote_into_the_attributes_stays(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    keep(repository, paths, "first", a=CONTENT)
    typed(repository, "worktree", "add", "--quiet", str(tmp_path / "tree"), BRANCH)
    with (tmp_path / "tree/local/.gitattributes").open("a") as file:
        file.write("*.csv diff=csv\n")
    typed(tmp_path / "tree", "commit", "--quiet", "--no-gpg-sign", "-a", "-m", "by hand")
    keep(repository, paths, "second", b=CONTENT)
    assert "*.csv diff=csv" in attributes(repository)
    assert len(attributes(repository)) == 4


def test_a_small_file_that_looks_like_a_pointer_is_kept_like_a_large_one(
    repository: Path, paths: ProjectPaths
) -> None:
    strange = Pointer("a" * 64, 3).text
    keep(repository, paths, "first", a=strange)
    assert content_of(repository, "local/a") == strange


def test_a_result_may_not_be_called_like_the_attributes(
    repository: Path, paths: ProjectPaths
) -> None:
    with pytest.raises(KochiError, match=r"'a/\.gitattributes': git would obey"):
        journal(paths, MACHINE, lay(repository, "first", {"a/.gitattributes": b"x"}), repository)


@pytest.mark.parametrize("large", [True, False])
def test_the_origin_of_a_large_file_compares_its_content(
    repository: Path, paths: ProjectPaths, tmp_path: Path, large: bool
) -> None:
    about: dict[str, Any] = {
        "version": 1,
        "recipes": [],
        "experiment": "",
        "batch": "",
        "name": "",
        "parameters": {},
        "duplicate": 0,
    }
    about |= {"node": "", "worker": "", "queue": "", "job": "", "attempt": "", "started": ""}
    about |= {"seconds": 1, "exit_status": 0}
    about["snapshot"] = {"tree": "0" * 40, "commit": "0" * 40, "base": None, "dirty": False}
    result = lay(repository, "first", {"a": CONTENT})
    result.record.update(about)  # type: ignore[attr-defined]
    journal(paths, MACHINE, result, repository, LIMIT if large else None)
    commit_pending(repository, paths, MACHINE)
    typed(repository, "worktree", "add", "--quiet", str(tmp_path / "tree"), BRANCH)
    file = tmp_path / "tree/local/a"
    assert file.read_bytes().startswith(b"version https") == large
    assert origin_in_commit(repository, "", "local/a").file == "identical"
    assert origin_of_file(repository, file).file == "identical"
    write(file, CONTENT)
    assert origin_of_file(repository, file).file == "identical"
    write(file, Pointer("a" * 64, len(CONTENT)).text)
    assert origin_of_file(repository, file).file == "changed"


# ---- faults


def test_a_content_that_was_pruned_before_its_commit_is_kept_again_from_results(
    repository: Path, paths: ProjectPaths
) -> None:
    keep(repository, paths, "before", small=b"small")
    journal(paths, MACHINE, lay(repository, "first", {"a": CONTENT}), repository, LIMIT)
    lfs(repository, "prune", "--force")
    assert objects(repository) == []
    assert commit_pending(repository, paths, MACHINE) == 0
    assert [path.name for path in paths.damaged_results(MACHINE).iterdir()] == ["first"]
    assert commit_missing(repository, paths, MACHINE, large=LIMIT) == 1
    assert pending(paths, MACHINE) == ()
    assert content_of(repository, "local/a") == CONTENT


def test_after_the_branch_is_deleted_large_results_are_committed_without_another_copy(
    repository: Path, paths: ProjectPaths
) -> None:
    write(repository / ".gitignore", "results/\n.snakemake/\n")
    keep(repository, paths, "first", a=CONTENT, b=b"small")
    assert commit_missing(repository, paths, MACHINE) == 0
    file = Store.of(repository).path(Pointer(DIGEST, len(CONTENT)))
    before = file.stat()
    typed(repository, "branch", "--quiet", "-D", BRANCH)
    assert commit_missing(repository, paths, MACHINE, large=LIMIT) == 1
    assert content_of(repository, "local/a") == CONTENT
    assert attributes(repository) == [
        "/.gitattributes merge=union",
        "/a filter=lfs diff=lfs merge=lfs -text",
    ]
    assert file.stat().st_ino == before.st_ino


def test_results_of_earlier_releases_that_were_too_large_for_git_are_committed_by_sync(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    write(repository / ".gitignore", "results/\n.snakemake/\n")
    place = initialise(repository, tmp_path / "tree", name="local")
    lay(repository, "first", {"a": CONTENT})
    report = synchronise(repository, paths, MACHINE, large=LIMIT)
    assert (place, report.missed, report.commits) == ("local", 1, 1)
    assert content_of(repository, "local/a", "kochi_artifacts") == CONTENT


def test_results_of_two_clones_of_one_name_merge_with_the_attributes_of_both(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    keep(repository, paths, "first", a=CONTENT)
    initialise(repository, tmp_path / "tree", name="local")
    synchronise(repository, paths, MACHINE)
    start = git(repository, "rev-parse", BRANCH).strip()
    keep(repository, paths, "second", b=CONTENT)
    typed(repository, "branch", "other", BRANCH)
    typed(repository, "branch", "--force", BRANCH, start)
    shutil.rmtree(WorkingPaths(repository, MACHINE).records / "second")  # it was in another clone
    keep(repository, paths, "third", c=CONTENT)
    synchronise(repository, paths, MACHINE)
    typed(tmp_path / "tree", "merge", "--quiet", "--no-edit", "--no-gpg-sign", "other")
    lines = (tmp_path / "tree/local/.gitattributes").read_text().splitlines()
    assert [line[:2] for line in lines] == ["/.", "/a", "/c", "/b"]


# ---- remotes


@pytest.fixture
def without_git_lfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH has all programs but git-lfs."""
    place = tmp_path / "programs"
    place.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for file in Path(directory).glob("*"):
            if file.name != "git-lfs" and not (place / file.name).is_symlink():
                (place / file.name).symlink_to(file)
    monkeypatch.setenv("PATH", str(place))


def test_a_pushed_large_file_is_fetched_in_a_clone(
    repository: Path, paths: ProjectPaths, bare: Path, clone: Path, tmp_path: Path
) -> None:
    keep(repository, paths, "first", fib__a=CONTENT[:5000])
    keep(repository, paths, "second", fib__a=CONTENT, fib__b=b"small")
    pushed = push(repository, paths)
    assert pushed.large_command[:4] == ("lfs", "push", "--all", "origin")
    assert {path.name for path in (bare / "lfs/objects").glob("*/*/*")} == set(objects(repository))
    assert fetch(clone).large_command == ()
    commit = newest_commit(clone, "local/fib/a")
    with pytest.raises(MissingContentError):
        next(read_artifacts(clone, commit, ["local/fib/a"]))
    fetched = fetch_content(clone, commit, "local/fib/a")
    assert (fetched.size, fetched.was_here) == (len(CONTENT), False)
    assert fetched.file is not None and fetched.file.read_bytes() == CONTENT
    assert fetch_content(clone, commit, "local/fib/a").was_here
    assert content_of(clone, "local/fib/a", commit) == CONTENT
    assert fetch_content(clone, commit, "local/fib/b").file is None
    # Of an earlier commit, and from a remote that is named.
    assert objects(clone) == [DIGEST]
    fetch_content(clone, f"{commit}~1", "local/fib/a", "origin")
    write_artifact(clone, f"{commit}~1", "local/fib/a", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT[:5000]
    assert push(repository, paths).changed == ()


def test_all_large_files_of_the_newest_commits_can_be_fetched(
    repository: Path, paths: ProjectPaths, clone: Path
) -> None:
    for number in range(3):
        keep(repository, paths, f"r{number}", a=CONTENT[number:], **{f"b{number}": CONTENT[:4000]})
    push(repository, paths)
    typed(clone, *fetch(clone, with_large=True).large_command)
    newest = CONTENT[2:], CONTENT[:4000]
    assert objects(clone) == sorted(hashlib.sha256(each).hexdigest() for each in newest)


def test_without_git_lfs_branches_are_pushed_and_the_message_says_what_to_install(
    repository: Path, paths: ProjectPaths, bare: Path, clone: Path, without_git_lfs: None
) -> None:
    for each in (repository, clone):
        git(each, "config", "alias.lfs", f"!touch {bare}/executed")
    keep(repository, paths, "small", b=b"small")
    (repository / ".git/lfs/objects").mkdir(parents=True)  # of other files of the project
    assert push(repository, paths).large_command == ()
    keep(repository, paths, "first", a=CONTENT)
    with pytest.raises(GitError, match=r"(?s)branches and code were pushed to origin.*apt install"):
        push(repository, paths)
    assert show(bare, "a").startswith(b"version")
    fetch(clone)
    with pytest.raises(GitError, match=r"(?s)git-lfs, which is not installed\nInstall it"):
        fetch_content(clone, f"origin/{BRANCH}", "local/a")
    with pytest.raises(GitError, match="is not installed"):
        fetch(clone, with_large=True)
    assert not (bare / "executed").exists()


def test_a_content_that_was_not_pushed_is_told(
    repository: Path, paths: ProjectPaths, clone: Path
) -> None:
    keep(repository, paths, "first", a=CONTENT)
    push(repository, paths)
    keep(repository, paths, "second", b=CONTENT[1:])
    typed(repository, "push", "--quiet", "--no-verify", "origin", BRANCH)
    fetch(clone)
    with pytest.raises(GitError, match=r"(?s)not all contents came from origin.*artifact push"):
        fetch_content(clone, f"origin/{BRANCH}", "local/b")
    # A clone that has not all contents pushes what it has.
    fetch_content(clone, f"origin/{BRANCH}", "local/a")
    typed(clone, "branch", "--quiet", BRANCH, f"origin/{BRANCH}")
    assert push(clone, paths).without_large == 1


def test_a_content_that_is_damaged_on_the_way_is_not_kept(
    repository: Path, paths: ProjectPaths, bare: Path, clone: Path
) -> None:
    keep(repository, paths, "first", a=CONTENT)
    push(repository, paths)
    file = bare / "lfs/objects" / DIGEST[:2] / DIGEST[2:4] / DIGEST
    file.unlink()  # it may be a link to ours
    write(file, CONTENT[::-1])
    fetch(clone)
    with pytest.raises(KochiError):
        fetch_content(clone, f"origin/{BRANCH}", "local/a")
    assert objects(clone) == []


def test_no_program_is_executed_that_a_repository_names_for_git_lfs(
    repository: Path, paths: ProjectPaths, bare: Path, tmp_path: Path
) -> None:
    keep(repository, paths, "first", a=CONTENT)
    trap = f"touch {tmp_path}/executed"
    for key in ("lfs.customtransfer.evil.path", "lfs.extension.evil.smudge"):
        git(repository, "config", key, trap)
        git(repository, "config", "lfs.standalonetransferagent", "evil")
        with pytest.raises(GitError, match=rf"has {key}.*\n.*git lfs push --all origin"):
            push(repository, paths)
        git(repository, "config", "--unset", key)
    for key in ("clean", "smudge", "process"):
        git(repository, "config", f"filter.lfs.{key}", trap)
    initialise(repository, tmp_path / "tree", name="local")
    synchronise(repository, paths, MACHINE)
    assert (tmp_path / "tree/local/a").read_bytes() == Pointer(DIGEST, len(CONTENT)).text
    assert not (tmp_path / "executed").exists()


def test_the_worktree_of_results_has_the_large_files_that_are_here(
    repository: Path, paths: ProjectPaths, clone: Path, tmp_path: Path
) -> None:
    keep(repository, paths, "first", a=CONTENT)
    git(repository, "lfs", "install", "--skip-repo")
    initialise(repository, tmp_path / "tree", name="local")
    synchronise(repository, paths, MACHINE)
    assert (tmp_path / "tree/local/a").read_bytes() == CONTENT
    keep(repository, paths, "second", b=CONTENT[1:])
    synchronise(repository, paths, MACHINE)
    assert (tmp_path / "tree/local/b").read_bytes() == CONTENT[1:]
    assert git(tmp_path / "tree", "status", "--porcelain") == ""
    # In a clone nothing is downloaded by the way.
    push(repository, paths)
    fetch(clone)
    initialise(clone, tmp_path / "other", name="local")
    assert (tmp_path / "other/local/a").read_bytes() == Pointer(DIGEST, len(CONTENT)).text
    assert git(tmp_path / "other", "status", "--porcelain") == ""
    assert list(clone.glob(".git/lfs/logs/*")) == []
