"""The journal and the committer on a filesystem that fails or is full."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem
from git_helpers import git, write

from snakemake_kochi.artifacts.committer import commit_missing, commit_pending
from snakemake_kochi.artifacts.entry import VERSION
from snakemake_kochi.artifacts.journal import Result, journal, pending
from snakemake_kochi.artifacts.promises import promise_to_commit
from snakemake_kochi.artifacts.published import branch_called as branch
from snakemake_kochi.paths import ProjectPaths, Root, WorkingPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.outputs import Output, keep_result

MACHINE = "local"


@pytest.fixture
def filesystem(tmp_path: Path) -> Iterator[FaultyFilesystem]:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as mounted:
        yield mounted


@pytest.fixture
def paths(filesystem: FaultyFilesystem, repository: Path) -> ProjectPaths:
    """With a KOCHI_ROOT on that filesystem."""
    return Root(filesystem.path / "root").project(repository)


def put(paths: ProjectPaths, tmp_path: Path, *identities: str) -> None:
    for identity in identities:
        source = write(tmp_path / "work" / identity, identity)
        journal(paths, MACHINE, Result(identity, {f"{identity}.log": source}, {}))


def kept(repository: Path) -> set[str]:
    if branch(MACHINE) not in git(repository, "for-each-ref"):
        return set()
    listed = git(repository, "ls-tree", "-r", "--name-only", "--full-tree", branch(MACHINE))
    return {Path(path).stem for path in listed.splitlines() if "/.kochi/" not in path}


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.ENOENT])
def test_an_entry_that_cannot_be_read_now_stays_in_the_journal_and_is_committed_later(
    repository: Path,
    paths: ProjectPaths,
    filesystem: FaultyFilesystem,
    tmp_path: Path,
    error: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(paths, tmp_path, "bad", "good")
    # Errors of getattr are what an open of the kernel's cached file would not show.
    with (
        filesystem.fault("getattr", error, "*/bad"),
        filesystem.fault("open", error, "*/bad"),
    ):
        assert commit_pending(repository, paths, MACHINE) == 1
        assert kept(repository) == {"good"}
        assert pending(paths, MACHINE) == ("bad",)
    assert "bad cannot be read now" in caplog.text
    assert not paths.damaged_results(MACHINE).exists()
    assert commit_pending(repository, paths, MACHINE) == 1
    assert kept(repository) == {"good", "bad"}


def test_an_entry_that_fails_while_it_is_read_does_not_block_other_results(
    repository: Path, paths: ProjectPaths, filesystem: FaultyFilesystem, tmp_path: Path
) -> None:
    put(paths, tmp_path, "bad", "good")
    with filesystem.fault("read", errno.EIO, "*/bad") as fault:
        assert commit_pending(repository, paths, MACHINE) == 1
        assert filesystem.count(fault)
    assert kept(repository) == {"good"}
    assert commit_pending(repository, paths, MACHINE) == 1
    assert kept(repository) == {"good", "bad"}


def test_a_damaged_entry_that_cannot_be_set_aside_does_not_block_other_results(
    repository: Path, paths: ProjectPaths, filesystem: FaultyFilesystem, tmp_path: Path
) -> None:
    put(paths, tmp_path, "bad", "good")
    (paths.journal(MACHINE) / "bad").write_bytes(b"{")
    with filesystem.fault("mkdir", errno.ENOSPC, "*/damaged") as fault:
        assert commit_pending(repository, paths, MACHINE) == 1
        assert filesystem.count(fault)
    assert pending(paths, MACHINE) == ("bad",)
    assert commit_pending(repository, paths, MACHINE) == 0
    assert [path.name for path in paths.damaged_results(MACHINE).iterdir()] == ["bad"]


def test_an_entry_of_a_newer_version_is_left_to_it(
    repository: Path, paths: ProjectPaths, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(paths, tmp_path, "newer", "good")
    file = paths.journal(MACHINE) / "newer"
    now, newer = (f'"version": {version},' for version in (VERSION, VERSION + 1))
    assert now in file.read_text()
    file.write_text(file.read_text().replace(now, newer))
    assert commit_pending(repository, paths, MACHINE) == 1
    assert pending(paths, MACHINE) == ("newer",)
    assert "written by a newer snakemake_kochi" in caplog.text


# ---- a run that has succeeded


@pytest.fixture
def keep(paths: ProjectPaths, repository: Path) -> Any:
    """Do what the process of a run does when its script has succeeded."""

    def keep_one(
        identity: str, base: str | None = "there is a commit", large_files: int | None = None
    ) -> None:
        working = WorkingPaths(repository, MACHINE)
        file = write(working.results / f"{identity}.log", identity * 5000)
        record = {
            "identity": identity,
            "machine": MACHINE,
            "ended": "2026-01-01T00:00:00+00:00",
            "artifacts": [{"type": "stdout", "dest": f"{identity}.log", "src": None}],
        }
        write(working.records / identity / "record.json", json.dumps(record))
        freeze = BatchFreeze(
            root=str(paths.directory.parent.parent),
            directory=str(repository),
            machine_name=MACHINE,
            load_environment="",
            snapshot={"base": base},
            experiment="fib",
            file="fib.yaml",
            batch="test",
            build=None,  # type: ignore[arg-type]
            run=None,  # type: ignore[arg-type]
            prepare=None,
            sources={},
            recipes={},
            job_name="",
            artifacts=(),
            facts={},
            recorded_variables=(),
            large_files=large_files,
        )
        keep_result(freeze, record, [Output("stdout", f"{identity}.log", None, file)])

    write(repository / ".gitignore", "results/\n.snakemake/\n")
    return keep_one


# Files of the committer: its note, its lock, the directory of locks, and its temporary repository.
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("*/committed", errno.ENOSPC),
        ("*/committer", errno.EDQUOT),
        ("*/locks*", errno.ENOSPC),
        ("*/.commit.*", errno.ENOSPC),
        ("*/.commit.*", errno.EDQUOT),
    ],
)
def test_a_full_disk_while_committing_fails_no_run_whose_result_is_journaled(
    repository: Path,
    paths: ProjectPaths,
    filesystem: FaultyFilesystem,
    keep: Any,
    path: str,
    error: int,
) -> None:
    with (
        filesystem.fault("create", error, path) as fault,
        filesystem.fault("mknod", error, path),
        filesystem.fault("mkdir", error, path) as other,
    ):
        keep("a")
        assert filesystem.count(fault) + filesystem.count(other)
        assert set(pending(paths, MACHINE)) | kept(repository) == {"a"}
    commit_pending(repository, paths, MACHINE)
    assert kept(repository) == {"a"}


def test_a_note_of_the_last_commit_that_fails_fails_no_run(
    repository: Path, paths: ProjectPaths, filesystem: FaultyFilesystem, keep: Any
) -> None:
    keep("a")
    with filesystem.fault("getattr", errno.EIO, "*/committed") as fault:
        keep("b")
        assert filesystem.count(fault)
    commit_pending(repository, paths, MACHINE)
    assert kept(repository) == {"a", "b"}


@pytest.mark.parametrize("can_be_noted", [True, False])
def test_a_result_that_cannot_be_journaled_stays_in_results_and_is_committed_from_there(
    repository: Path,
    paths: ProjectPaths,
    filesystem: FaultyFilesystem,
    keep: Any,
    capfd: pytest.CaptureFixture[str],
    can_be_noted: bool,
) -> None:
    keep("a")
    assert commit_missing(repository, paths, MACHINE) == 0
    note = "/nothing" if can_be_noted else "*/disagreed"
    with (
        filesystem.fault("create", errno.ENOSPC, "*/journal/*"),
        filesystem.fault("mknod", errno.ENOSPC, "*/journal/*"),
        filesystem.fault("mkdir", errno.ENOSPC),
        filesystem.fault("create", errno.ENOSPC, note) as fault,
        filesystem.fault("mknod", errno.ENOSPC, note),
    ):
        keep("b")
        assert can_be_noted or filesystem.count(fault)
    assert "the result is only in results/ for now" in capfd.readouterr().err
    assert commit_missing(repository, paths, MACHINE) == 1
    assert kept(repository) == {"a", "b"}


@pytest.mark.parametrize("call", ["mkdir", "write", "rename"])
def test_a_large_file_that_the_store_cannot_take_stays_in_results_and_is_kept_later(
    repository: Path,
    paths: ProjectPaths,
    filesystem: FaultyFilesystem,
    keep: Any,
    capfd: pytest.CaptureFixture[str],
    call: str,
) -> None:
    keep("a")
    git(repository, "config", "lfs.storage", str(filesystem.path / "store"))
    where = "/store*"
    with filesystem.fault(call, errno.ENOSPC, where) as fault:
        keep("b", large_files=2000)
        assert filesystem.count(fault)
        assert "the result is only in results/ for now" in capfd.readouterr().err
        assert pending(paths, MACHINE) == ()
        # Nothing goes into git instead, and the other results do not wait for it.
        assert commit_missing(repository, paths, MACHINE, large=2000) == 0
    assert [path for path in filesystem.path.glob("store/**/*") if path.is_file()] == []
    assert commit_missing(repository, paths, MACHINE, large=2000) == 1
    assert kept(repository) == {"a", "b", ".gitattributes"}
    pointer = git(repository, "show", f"{branch(MACHINE)}:local/b.log")
    assert pointer.startswith("version https://git-lfs")


@pytest.mark.parametrize("call", ["open", "getattr"])
def test_an_artifact_that_cannot_be_read_now_is_not_called_missing(
    paths: ProjectPaths, filesystem: FaultyFilesystem, call: str
) -> None:
    """Otherwise its run would fail, and the artifact would be deleted."""
    source = write(filesystem.path / "results" / "a.log", "a")
    with (
        filesystem.fault(call, errno.EIO, "/results/a.log"),
        pytest.raises(OSError, match=r"a\.log"),
    ):
        journal(paths, MACHINE, Result("a", {"a.log": source}, {}))
    assert pending(paths, MACHINE) == ()


def test_a_run_that_ends_while_git_is_away_loses_nothing(
    repository: Path, paths: ProjectPaths, tmp_path: Path, keep: Any
) -> None:
    keep("a")
    commit_missing(repository, paths, MACHINE)
    (repository / ".git").rename(tmp_path / "away")
    keep("b")
    keep("c", base=None)  # of a repository without a commit
    (tmp_path / "away").rename(repository / ".git")
    assert commit_pending(repository, paths, MACHINE) == 2
    assert commit_missing(repository, paths, MACHINE) == 0
    assert kept(repository) == {"a", "b", "c"}


def test_a_promise_that_cannot_be_written_is_not_made(
    paths: ProjectPaths, filesystem: FaultyFilesystem
) -> None:
    with (
        filesystem.fault("create", errno.ENOSPC) as fault,
        promise_to_commit(paths, MACHINE),
    ):
        assert filesystem.count(fault)
