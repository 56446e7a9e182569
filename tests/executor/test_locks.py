"""A run uses the locks that kochi.yaml names, or says why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_helpers import nothing_is_left, results
from support import write

from snakemake_kochi.locks import settle_locks
from snakemake_kochi.locks.settings import find_lock_settings
from snakemake_kochi.paths import Root

RUN = ("--executor", "kochi", "--jobs", "4")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One outside of any repository, where the KOCHI_ROOT's configuration counts."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "c.txt"
        rule one:
            output: "{name}.txt"
            wildcard_constraints: name="[ab]"
            shell: "echo > {output}"
        rule local:
            localrule: True
            input: "a.txt", "b.txt"
            output: "c.txt"
            shell: "cat {input} > {output}"
        """,
    )
    return tmp_path


def test_a_run_with_leases_in_another_directory(directory: Path, snakemake: Any) -> None:
    (directory / "locks").mkdir()
    conf = f"machines: {{local: {{lock_dir: {directory}/locks, lock_kind: lease}}}}"
    write(Root.find().configuration, conf)
    done = snakemake(*RUN, cwd=directory)
    assert done.returncode == 0
    assert [result["reason"] for result in results()] == ["success"] * 2
    assert nothing_is_left()
    machine = Root.find().machine("local")
    settings = find_lock_settings(machine)
    assert settings.kind == "lease"
    (mark,) = settings.paths.directory.iterdir()
    assert mark == settings.paths.settled(settings.nonce), "no lease is left"
    assert not machine.locks.directory.exists()


def test_a_run_with_other_locks_than_the_machine_uses_is_refused(
    directory: Path, snakemake: Any
) -> None:
    machine = Root.find().machine("local")
    settle_locks(machine)
    write(Root.find().configuration, "machines: {local: {lock_kind: lease}}")
    done = snakemake(*RUN, cwd=directory)
    assert done.returncode == 1
    assert done.stdout.count("do not exclude each other") == 1
    assert "Traceback" not in done.stdout
    assert f"rm {machine.lock_settings}" in done.stdout
    assert not (machine.directory / "runs").exists() and not machine.queues.exists()
