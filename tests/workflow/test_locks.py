"""Builds, installations and commits use the locks that the machine is configured to use."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem
from support import git, wait_until

from snakemake_kochi.errors import KochiError
from snakemake_kochi.locks import LockLostError, find_lock_settings, settle_locks
from snakemake_kochi.paths import Root
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.freeze import take_freeze
from snakemake_kochi.phases.make import make

from .conftest import results

RUN = ("-m", "snakemake", "--executor", "local", "--cores", "2", *results(1, 2))


def without_flock(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python, and all that it starts, on filesystems that have no flock(2)."""
    inject = ("-e", "trace=flock", "-e", "inject=flock:error=ENOLCK")
    return subprocess.run(
        ["strace", "--seccomp-bpf", "-f", "-qq", "-o", os.devnull, *inject, sys.executable, *words],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )


def configure(project: Any, **machine: object) -> None:
    settings = ", ".join(f"{key}: {value}" for key, value in machine.items())
    with open(project.directory / "kochi.yaml", "a") as file:
        file.write(f"\nmachines: {{local: {{{settings}}}}}\n")


def committed(project: Any) -> list[str]:
    listed = git(project.directory, "ls-tree", "-r", "--name-only", "kochi_artifacts_local")
    return [line for line in listed.splitlines() if line.endswith(".txt")]


def test_where_files_cannot_be_locked_nothing_is_installed_and_the_message_says_what_to_configure(
    project: Any,
) -> None:
    done = without_flock(project.directory, *RUN)
    print(done.stdout)
    assert done.returncode == 1
    assert "does not support file locks (flock: No locks available, ENOLCK)" in done.stdout
    assert "lock_dir" in done.stdout and "lock_kind: lease" in done.stdout
    assert "Traceback" not in done.stdout
    assert project.take_ran() == []


def test_with_leases_all_phases_work_where_files_cannot_be_locked(project: Any) -> None:
    configure(project, lock_kind="lease")
    done = without_flock(project.directory, *RUN)
    print(done.stdout)
    assert done.returncode == 0
    assert "build sum 0" in project.take_ran()
    assert committed(project) == ["local/sum/first/1_0.txt", "local/sum/first/2_0.txt"]
    left = find_lock_settings(Root.find().machine("local")).paths.directory.rglob("*")
    assert [path for path in left if not path.is_dir()] == [], "no lease is left"


def test_the_locks_of_a_project_are_in_the_configured_directory(
    project: Any, tmp_path: Path
) -> None:
    (tmp_path / "locks").mkdir()
    configure(project, lock_dir=tmp_path / "locks")
    project.snakemake(*results(1, 2))
    root = Root.find()
    locks = find_lock_settings(root.machine("local"))
    assert locks.paths.directory.parent == tmp_path / "locks"
    own = locks.paths.project(root.project(project.directory).directory)
    (build,) = (own.directory / "builds").iterdir()
    for lock in (own.install("base", "one"), own.install("tool", "fast"), own.committer, build):
        assert lock.is_file() and lock.stat().st_mode & 0o777 == 0o600
        assert lock.parent.stat().st_mode & 0o777 == 0o700
    assert [path for path in root.directory.rglob("*") if "lock" in path.name] == [
        root.machine("local").lock_settings
    ]


BUILD = """\
    import os, sys
    from pathlib import Path
    from snakemake_kochi.phases.batch_freeze import BatchFreeze
    from snakemake_kochi.phases.make import make
    from snakemake_kochi.phases.freeze import take_freeze
    os.environ["KOCHI_ROOT"] = sys.argv[1]
    freeze = take_freeze(Path.cwd(), "local")
    experiment = freeze.experiment("sum.yaml")
    print("ready", flush=True)
    batch = BatchFreeze.of(freeze, experiment)
    build = make(batch, batch.build, {"debug": "0"}, ())
    assert (build.tree / "built.txt").read_text() == "code\\n"
    """


def test_two_nodes_whose_flock_is_their_own_build_once_with_leases(
    project: Any, tmp_path: Path
) -> None:
    configure(project, lock_kind="lease")
    go = Path(f"{project.ran}.go")
    wait = f"until test -e '{go}'; do sleep 0.1; done"
    project.edit("sum.yaml", "cp code.txt", f"{wait}\n        cp code.txt")
    processes = []
    with (
        FaultyFilesystem(tmp_path / "shared", tmp_path / "node1") as first,
        FaultyFilesystem(tmp_path / "shared", tmp_path / "node2") as second,
    ):
        try:
            for node in (first, second):
                words = [sys.executable, "-c", textwrap.dedent(BUILD), str(node.path / "root")]
                process = subprocess.Popen(
                    words, cwd=project.directory, stdout=subprocess.PIPE, text=True
                )
                processes.append(process)
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                wait_until(project.ran.exists, "the first one builds")
            time.sleep(1)  # the second one has the time to do so, too
            go.touch()
            assert [process.wait(120) for process in processes] == [0, 0]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    assert len(project.take_ran()) == 1


def test_a_build_whose_lease_was_taken_away_does_not_count(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(project, lock_kind="lease")
    settle_locks(Root.find().machine("local"), kind="lease", lease_duration=0.5)
    project.edit("sum.yaml", "cp code.txt", 'rm "$LOCK" && sleep 2\n        cp code.txt')
    freeze = take_freeze(project.directory, "local")
    builds = Root.find().machine("local").locks.project(freeze.paths.directory).directory / "builds"
    monkeypatch.setenv("LOCK", f"{builds}/*")
    project.edit("sum.yaml", '"$LOCK"', "$LOCK")
    freeze = take_freeze(project.directory, "local")
    batch = BatchFreeze.of(freeze, freeze.experiment("sum.yaml"))
    with pytest.raises(LockLostError, match="this process lost the lock"):
        make(batch, batch.build, {"debug": "0"}, ())
    assert list(freeze.paths.directory.glob("builds/local/*/manifest.json")) == []


def test_a_project_with_other_locks_than_the_machine_uses_is_refused(project: Any) -> None:
    project.snakemake("--dry-run")
    configure(project, lock_kind="lease")
    with pytest.raises(KochiError, match="do not exclude each other"):
        take_freeze(project.directory, "local")
