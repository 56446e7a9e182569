from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from git_helpers import BAD_NAME, GitProgram, git, write
from support import wait_until

from snakemake_kochi.artifacts import committer
from snakemake_kochi.artifacts.branch_content import record_path
from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, is_commit_due, journal, pending
from snakemake_kochi.artifacts.promises import is_commit_promised, promise_to_commit
from snakemake_kochi.artifacts.published import branch_called as branch
from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.errors import DamagedFileError, GitError, KochiError, PhaseError
from snakemake_kochi.locks import find_lock_settings, settle_locks
from snakemake_kochi.paths import ProjectPaths, Root

MACHINE = "local"


def put(paths: ProjectPaths, identity: str, files: dict[str, bytes], **record: object) -> None:
    """Journal a result with these contents."""
    sources = {
        dest: write(paths.directory / "work" / identity / str(number), content)
        for number, (dest, content) in enumerate(files.items())
    }
    journal(paths, MACHINE, Result(identity, sources, {"attempt": identity, **record}))


def tree_of(repository: Path, name: str = branch(MACHINE)) -> dict[str, str]:
    """Path and content of every file of a branch."""
    listed = git(repository, "ls-tree", "-r", "-z", "--full-tree", name).split("\0")
    return {
        line.partition("\t")[2]: git(repository, "cat-file", "blob", line.split()[2])
        for line in listed
        if line
    }


def artifacts_of(repository: Path) -> dict[str, str]:
    prefix = f"{MACHINE}/"
    return {
        path.removeprefix(prefix): content
        for path, content in tree_of(repository).items()
        if not path.startswith(f"{prefix}.kochi/")
    }


def recorded(repository: Path) -> list[str]:
    """The identity of every record ever added, once for each commit that added it."""
    added = git(
        repository, "log", "-m", "--format=", "--name-only", "--diff-filter=A", branch(MACHINE)
    )
    return sorted(Path(line).stem for line in added.splitlines() if "/.kochi/records/" in line)


def commits(repository: Path) -> int:
    return int(git(repository, "rev-list", "--count", branch(MACHINE)))


def test_many_results_become_one_commit_and_nothing_else_of_the_repository_changes(
    repository: Path, paths: ProjectPaths, untouched: Callable[[], None]
) -> None:
    untouched()
    for number in range(20):
        put(paths, f"a{number}", {f"fib/n_{number}.log": b"%d\n" % number}, n=number)
    assert commit_pending(repository, paths, MACHINE) == 20
    assert commits(repository) == 1
    assert artifacts_of(repository) == {f"fib/n_{n}.log": f"{n}\n" for n in range(20)}
    record = tree_of(repository)[record_path(MACHINE, "a7")]
    assert json.loads(record) == {"attempt": "a7", "n": 7}
    assert pending(paths, MACHINE) == ()
    assert commit_pending(repository, paths, MACHINE) == 0


def test_a_later_commit_keeps_the_earlier_results(repository: Path, paths: ProjectPaths) -> None:
    for identity in ("a", "b", "c"):
        put(paths, identity, {f"{identity}.log": identity.encode()})
        commit_pending(repository, paths, MACHINE)
    assert artifacts_of(repository) == {"a.log": "a", "b.log": "b", "c.log": "c"}
    assert commits(repository) == 3
    assert git(repository, "fsck", "--strict") == ""


def test_an_unchanged_artifact_is_recorded_again(repository: Path, paths: ProjectPaths) -> None:
    for identity in ("first", "second"):
        put(paths, identity, {"same.log": b"same\n"})
        assert commit_pending(repository, paths, MACHINE) == 1
    assert recorded(repository) == ["first", "second"]


def test_a_result_journaled_twice_is_committed_once(repository: Path, paths: ProjectPaths) -> None:
    put(paths, "a", {"a.log": b"first"})
    put(paths, "a", {"a.log": b"second"})
    assert commit_pending(repository, paths, MACHINE) == 1
    put(paths, "a", {"a.log": b"third"})
    assert commit_pending(repository, paths, MACHINE) == 0
    assert artifacts_of(repository) == {"a.log": "first"}
    assert pending(paths, MACHINE) == ()


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(("older", "newer"), [("a", "a/b"), ("a/b", "a"), ("a", "a")])
def test_of_results_that_exclude_each_other_the_newest_wins_and_the_older_is_in_the_history(
    repository: Path, paths: ProjectPaths, older: str, newer: str, apart: bool
) -> None:
    put(paths, "z-older", {older: b"older", "x": b"x"})
    if apart:
        commit_pending(repository, paths, MACHINE)
    put(paths, "a-newer", {newer: b"newer"})
    commit_pending(repository, paths, MACHINE)
    assert artifacts_of(repository) == {newer: "newer", "x": "x"}
    assert tree_of(repository, f"{branch(MACHINE)}~")[f"{MACHINE}/{older}"] == "older"
    assert git(repository, "fsck", "--strict") == ""


def test_any_name_and_any_content_can_be_an_artifact(repository: Path, paths: ProjectPaths) -> None:
    names = ["with space", "new\nline", 'quo"te', "back\\slash", "-dash", "été", BAD_NAME, "tab\t"]
    files = {name: f"{name!a}\n".encode() for name in names}
    put(paths, "a", files | {"bytes": b"\xff\x00\xe9", "empty": b"", "big": b"x\n" * (2 << 20)})
    commit_pending(repository, paths, MACHINE)
    found = artifacts_of(repository)
    assert {name: found[name].encode() for name in names} == files
    assert found["bytes"].encode("utf-8", "surrogateescape") == b"\xff\x00\xe9"
    assert found["empty"] == ""
    assert len(found["big"]) == 4 << 20


def test_a_name_with_a_carriage_return_is_one_of_them(
    repository: Path, paths: ProjectPaths
) -> None:
    for identity, names in (("a", ["e"]), ("b", ["c\rd", "e"])):
        put(paths, identity, dict.fromkeys(names, identity.encode()))
        assert commit_pending(repository, paths, MACHINE) == 1
    shown = git(repository, "show", f"{branch(MACHINE)}:{MACHINE}/c\rd")
    assert shown == "b"


@pytest.mark.parametrize(
    "dest",
    ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", ".kochi/x", "a/.GIT/x", "a\0b"],
)
def test_a_destination_that_leads_elsewhere_is_refused(paths: ProjectPaths, dest: str) -> None:
    with pytest.raises(KochiError, match="destination"):
        put(paths, "a", {dest: b""})
    assert pending(paths, MACHINE) == ()


def test_two_destinations_of_one_result_that_exclude_each_other_are_named(
    paths: ProjectPaths,
) -> None:
    with pytest.raises(KochiError, match="'a' and 'a/b/c' exclude each other"):
        put(paths, "x", {"a": b"", "a/b/c": b""})


def test_a_missing_file_is_named_and_nothing_is_journaled(
    paths: ProjectPaths, tmp_path: Path
) -> None:
    result = Result("a", {"a.log": write(tmp_path / "a", "a"), "b.log": tmp_path / "b"}, {})
    with pytest.raises(PhaseError, match=r"'b\.log': .*/b cannot be read \(No such file"):
        journal(paths, MACHINE, result)
    with pytest.raises(PhaseError, match="not a regular file"):
        journal(paths, MACHINE, Result("a", {"d": tmp_path}, {}))
    assert list(paths.journal(MACHINE).iterdir()) == []


@pytest.mark.parametrize("damage", ["beginning", "content"])
def test_a_damaged_entry_is_set_aside_and_does_not_block_others(
    repository: Path, paths: ProjectPaths, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(paths, "bad", {"bad.log": b"bad"})
    put(paths, "good", {"good.log": b"good"})
    entry = paths.journal(MACHINE) / "bad"
    if damage == "content":
        entry.write_text('{"version": 1, "files": [{"dest": "../../x"}]}\n\n')
    else:
        entry.write_bytes(b"{")
    assert commit_pending(repository, paths, MACHINE) == 1
    assert artifacts_of(repository) == {"good.log": "good"}
    assert (paths.damaged_results(MACHINE) / "bad").exists()
    assert "set aside" in caplog.text


def test_half_an_entry_left_by_a_killed_process_is_neither_committed_nor_damaged(
    repository: Path, paths: ProjectPaths
) -> None:
    write(paths.journal(MACHINE) / ".a.1234.tmp", "half")
    put(paths, "b", {"b": b"b"})
    assert commit_pending(repository, paths, MACHINE) == 1
    assert artifacts_of(repository) == {"b": "b"}
    assert not paths.damaged_results(MACHINE).exists()
    os.utime(paths.journal(MACHINE) / ".a.1234.tmp", (0, 0))
    put(paths, "c", {"c": b"c"})
    commit_pending(repository, paths, MACHINE)
    assert list(paths.journal(MACHINE).iterdir()) == []


_CHANGES = ("subprocess.Popen", "shutil.rmtree", "os.rename", "os.remove", "os.rmdir", "os.utime")


def _commit_until(repository: Path, paths: ProjectPaths, remaining: int) -> None:
    """Commits, and is killed before the n-th of the calls that start a process or change a file."""

    def kill(event: str, _: object) -> None:
        nonlocal remaining
        if event in _CHANGES:
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    commit_pending(repository, paths, MACHINE)


def test_a_committer_killed_at_any_point_loses_nothing_and_repeats_nothing(
    repository: Path, paths: ProjectPaths, untouched: Callable[[], None]
) -> None:
    untouched()
    put(paths, "before", {"before.log": b"before"})
    commit_pending(repository, paths, MACHINE)
    expected = {"before"}
    for point in range(1, 40):
        expected |= {f"r{point}a", f"r{point}b"}
        put(paths, f"r{point}a", {f"{point}.log": b"a"})
        put(paths, f"r{point}b", {f"{point}.csv": b"b"})
        killed = multiprocessing.Process(target=_commit_until, args=(repository, paths, point))
        killed.start()
        killed.join()
        if killed.exitcode == 0:
            break
        assert killed.exitcode == -signal.SIGKILL
        commit_pending(repository, paths, MACHINE)
        assert recorded(repository) == sorted(expected)
        assert pending(paths, MACHINE) == ()
    assert point > 8, "the committer was hardly ever killed"
    assert recorded(repository) == sorted(expected)
    assert not paths.damaged_results(MACHINE).exists()


def _produce(repository: Path, paths: ProjectPaths, producer: int) -> None:
    for number in range(20):
        put(paths, f"p{producer}-{number}", {f"p{producer}/{number}.log": b"x"})
        commit_pending(repository, paths, MACHINE)


def test_results_of_eight_processes_are_all_recorded_exactly_once(
    repository: Path, paths: ProjectPaths
) -> None:
    processes = [
        multiprocessing.Process(target=_produce, args=(repository, paths, producer))
        for producer in range(8)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    assert pending(paths, MACHINE) == ()
    expected = {f"p{producer}-{number}" for producer in range(8) for number in range(20)}
    assert recorded(repository) == sorted(expected)
    assert len(artifacts_of(repository)) == 160


def test_a_commit_made_while_another_process_holds_the_lock_is_left_to_it(
    repository: Path, paths: ProjectPaths
) -> None:
    put(paths, "a", {"a": b"a"})
    with committer.committer_lock(paths, MACHINE, 0):
        process = multiprocessing.Process(target=commit_pending, args=(repository, paths, MACHINE))
        process.start()
        process.join()
    assert process.exitcode == 0
    assert pending(paths, MACHINE) == ("a",)


def test_a_result_that_arrives_during_a_commit_is_committed_by_the_same_call(
    repository: Path, paths: ProjectPaths, git_program: GitProgram
) -> None:
    put(paths, "a", {"a": b"a"})
    with git_program.after("update-ref", lambda: put(paths, "late", {"late": b"late"})):
        assert commit_pending(repository, paths, MACHINE) == 2
    assert recorded(repository) == ["a", "late"]


def test_a_branch_moved_by_somebody_else_in_between_loses_no_commit(
    repository: Path, paths: ProjectPaths, git_program: GitProgram
) -> None:
    put(paths, "a", {"a": b"a"})
    commit_pending(repository, paths, MACHINE)
    put(paths, "b", {"b": b"b"})

    def moved_first() -> None:
        name = branch(MACHINE)
        tree = f"{name}^{{tree}}"
        theirs = git(repository, "commit-tree", tree, "-p", name, "-m", "theirs").strip()
        hooks = ("-c", "core.hooksPath=/dev/null")
        git(repository, *hooks, "update-ref", f"refs/heads/{name}", theirs)

    with git_program.before("update-ref", moved_first):
        assert commit_pending(repository, paths, MACHINE) == 1
    subjects = git(repository, "log", "--format=%s", branch(MACHINE)).splitlines()
    assert subjects == ["b: 1 result from local", "theirs", "a: 1 result from local"]


def test_a_lock_file_left_by_a_killed_git_does_not_block(
    repository: Path, paths: ProjectPaths
) -> None:
    put(paths, "a", {"a": b"a"})
    write(repository / ".git" / "refs" / "heads" / f"{branch(MACHINE)}.lock", "")
    assert commit_pending(repository, paths, MACHINE) == 1


def test_results_are_kept_when_git_refuses(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    put(paths, "a", {"a": b"a"})
    with pytest.raises(GitError):
        commit_pending(tmp_path, paths, MACHINE)
    assert pending(paths, MACHINE) == ("a",)
    assert commit_pending(repository, paths, MACHINE) == 1


def test_a_journal_file_that_shrinks_while_it_is_read_ends_no_other_file_early(
    repository: Path, paths: ProjectPaths, git_program: GitProgram
) -> None:
    put(paths, "a", {"a": b"content"})
    file = paths.journal(MACHINE) / "a"
    # The last command of git before the commit reads the files.
    with (
        git_program.before("init", lambda: os.truncate(file, file.stat().st_size - 4)),
        pytest.raises(DamagedFileError, match="changed while it was read"),
    ):
        commit_pending(repository, paths, MACHINE)
    assert "kochi_artifacts" not in git(repository, "for-each-ref")
    assert commit_pending(repository, paths, MACHINE) == 0
    assert (paths.damaged_results(MACHINE) / "a").read_bytes().endswith(b"\n\ncon")


def test_the_number_of_git_processes_does_not_grow_with_the_results(
    repository: Path, paths: ProjectPaths, git_program: GitProgram
) -> None:
    needed = []
    for round_, results in enumerate((1, 2, 150)):
        git_program.take_commands()
        for number in range(results):
            put(paths, f"r{round_}-{number}", {f"{round_}/{number}": b"x"})
        assert commit_pending(repository, paths, MACHINE) == results
        needed.append(len(git_program.take_commands()))
    assert needed[1] == needed[2] <= 9


@pytest.mark.parametrize("kind", ["--bare", "--depth=1", "worktree", "sha256"])
def test_bare_shallow_linked_and_sha256_repositories_take_results(
    repository: Path, paths: ProjectPaths, tmp_path: Path, kind: str
) -> None:
    other = tmp_path / "other"
    if kind == "worktree":
        git(repository, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", str(other))
    elif kind == "sha256":
        git(tmp_path, "init", "--quiet", "--object-format=sha256", "other")
    else:
        git(tmp_path, "clone", "--quiet", kind, f"file://{repository}", "other")
    choose_name(other, MACHINE, MACHINE)
    for identity in ("a", "b"):
        put(paths, identity, {identity: b"x"})
        assert commit_pending(other, paths, MACHINE) == 1
    assert recorded(other) == ["a", "b"]


def test_repositories_of_one_directory_name_share_no_journal(
    repository: Path, tmp_path: Path
) -> None:
    git(tmp_path, "init", "--quiet", "elsewhere/project")
    root = Root(tmp_path / "root")
    put(root.project(repository), "a", {"a": b"a"})
    other = root.project(tmp_path / "elsewhere" / "project")
    assert commit_pending(tmp_path / "elsewhere" / "project", other, MACHINE) == 0
    assert pending(root.project(repository), MACHINE) == ("a",)


@pytest.mark.parametrize("machine", ["a..b", "a.lock", "a."])
def test_a_machine_name_that_git_refuses_for_a_branch_is_explained(machine: str) -> None:
    with pytest.raises(KochiError, match="git branch"):
        branch(machine)


def test_a_commit_is_due_when_the_last_one_was_some_time_ago(
    repository: Path, paths: ProjectPaths
) -> None:
    assert is_commit_due(paths, MACHINE), "there was none"
    put(paths, "a", {"a": b"a"})
    assert committer.commit_in_burst(repository, paths, MACHINE) == 1
    committed = paths.committed(MACHINE).stat().st_mtime
    assert not is_commit_due(paths, MACHINE, now=committed + 1)
    assert is_commit_due(paths, MACHINE, now=committed + 2000)
    assert is_commit_due(paths, MACHINE, now=committed - 2000), "clocks that differ"


def test_a_run_that_commits_leaves_later_results_to_a_process_that_promised(
    repository: Path, paths: ProjectPaths, git_program: GitProgram
) -> None:
    put(paths, "a", {"a": b"a"})
    with promise_to_commit(paths, MACHINE):
        with git_program.after("update-ref", lambda: put(paths, "late", {"late": b"late"})):
            assert committer.commit_in_burst(repository, paths, MACHINE) == 1
        assert pending(paths, MACHINE) == ("late",)
        with committer.committer_lock(paths, MACHINE, 0):
            process = multiprocessing.Process(
                target=committer.commit_in_burst, args=(repository, paths, MACHINE)
            )
            process.start()
            process.join()
    assert process.exitcode == 0
    assert pending(paths, MACHINE) == ("late",)


def test_a_run_commits_results_journaled_meanwhile_if_no_other_process_promised(
    repository: Path, paths: ProjectPaths, git_program: GitProgram
) -> None:
    put(paths, "a", {"a": b"a"})
    with contextlib.ExitStack() as controller:
        controller.enter_context(promise_to_commit(paths, MACHINE))

        def controller_ends() -> None:
            put(paths, "late", {"late": b"late"})
            controller.close()
            # It finds the lock taken.
            assert committer.commit_in_burst(repository, paths, MACHINE) == 0

        with git_program.after("update-ref", controller_ends):
            assert committer.commit_in_burst(repository, paths, MACHINE) == 2
    assert pending(paths, MACHINE) == ()


def _promise(paths: ProjectPaths, promised: Event) -> None:
    with promise_to_commit(paths, MACHINE):
        promised.set()
        signal.pause()


@pytest.mark.parametrize("kind", ["flock", "lease"])
def test_a_promise_to_commit_is_seen_by_all_and_ends_with_the_last_process_that_made_it(
    paths: ProjectPaths, kind: str
) -> None:
    settle_locks(paths.machine(MACHINE), kind=kind, lease_duration=6.0)
    assert not is_commit_promised(paths, MACHINE)
    events = [multiprocessing.Event() for _ in range(2)]
    processes = [multiprocessing.Process(target=_promise, args=(paths, event)) for event in events]
    for process, event in zip(processes, events, strict=True):
        process.start()
        assert event.wait(30)
    for process in processes:
        assert is_commit_promised(paths, MACHINE)
        process.kill()
        process.join()
    # A lease stays for a moment.
    wait_until(lambda: not is_commit_promised(paths, MACHINE), "nobody promises")


def test_a_promise_that_was_kept_leaves_nothing_behind(paths: ProjectPaths) -> None:
    locks = find_lock_settings(paths.machine(MACHINE)).paths.project(paths.directory)
    with promise_to_commit(paths, MACHINE):
        (promise,) = locks.promises.iterdir()
    assert list(locks.promises.iterdir()) == []
    write(promise, "")
    long_ago = time.time() - 10 * 86400
    os.utime(promise, (long_ago, long_ago))
    with promise_to_commit(paths, MACHINE):
        assert not promise.exists(), "that of one that was killed"
        os.utime(next(locks.promises.iterdir()), (long_ago, long_ago))
        with promise_to_commit(paths, MACHINE):
            assert len(list(locks.promises.iterdir())) == 2, "a run may take long"
        assert is_commit_promised(paths, MACHINE)


def test_a_process_that_cannot_get_the_committer_lock_reports_it(
    repository: Path, paths: ProjectPaths
) -> None:
    put(paths, "a", {"a": b"a"})
    with (
        committer.committer_lock(paths, MACHINE, 0),
        pytest.raises(KochiError, match="another process"),
    ):
        committer.commit_in_burst(repository, paths, MACHINE, 0.1)
    assert pending(paths, MACHINE) == ("a",)


@pytest.mark.parametrize("results", [1, 150])
@pytest.mark.parametrize("shared", ["group", "0660", None])
def test_objects_have_the_permissions_that_the_repository_is_shared_with(
    repository: Path, paths: ProjectPaths, shared: str | None, results: int
) -> None:
    """As loose objects, and as a pack."""
    git(repository, "init", "--quiet", *([f"--shared={shared}"] if shared else []))
    objects = repository / ".git" / "objects"
    before = set(objects.rglob("*"))
    previous = os.umask(0o077)
    try:
        for number in range(results):
            put(paths, f"r{number}", {f"{number}": b"%d" % number})
        assert commit_pending(repository, paths, MACHINE) == results
    finally:
        os.umask(previous)
    made = {path: stat.S_IMODE(path.stat().st_mode) for path in set(objects.rglob("*")) - before}
    assert made
    assert any(path.suffix == ".pack" for path in made) == (results > 100)
    for path, mode in made.items():
        assert bool(mode & stat.S_IRGRP) == (shared is not None), path
        if path.is_dir():
            assert bool(mode & stat.S_IWGRP) == (shared is not None), path
