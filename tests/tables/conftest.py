"""A repository with recorded runs."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas
import pytest
from support import git, write

import snakemake_kochi
from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal
from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.artifacts.record import RECORD_VERSION
from snakemake_kochi.paths import Root
from snakemake_kochi.tables import records

BRANCH = "kochi_artifacts_ada"
FIB = """
    default_params: {n: 1}
    metrics: {time: '^time (.+)$', word: 'says (\\w+)'}
    batches:
      first: {artifacts: [{type: stdout, dest: "fib/${n}.log"}]}
      second:
        metrics: {speed: 'speed (.+)'}
        artifacts: [{type: stdout, dest: "fib/${n}.log"}]
    run: {script: ls}
    """


@dataclass
class Project:
    """A repository, whose runs are recorded and committed as those of Kochi are."""

    top: Path
    root: Path
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def run(
        self,
        output: str = "time 1.5\nsays hello\n",
        experiment: str = "fib.yaml",
        batch: str = "first",
        parameters: Mapping[str, str] | None = None,
        dest: str = "",
        **changes: Any,
    ) -> str:
        """Journal the result of a run; returns its identity."""
        number = next(self.numbers)
        parameters = {"n": str(number)} if parameters is None else parameters
        label = f"{Path(experiment).stem}.{batch}" if experiment else changes["rule"]["name"]
        identity = f"{label}.20260101T000000.{number:012x}"
        text = f"time 99\nsays nothing of the build\n{output}".encode()
        dest = dest or f"{label}/{number}.log"
        record = {
            "version": RECORD_VERSION,
            "identity": identity,
            "experiment": experiment,
            "batch": batch,
            "name": "job",
            "parameters": dict(parameters),
            "duplicate": 0,
            "machine": "local",
            "node": "n1",
            "snapshot": {"tree": "a" * 40, "commit": "b" * 40, "base": "c" * 40, "dirty": True},
            "started": f"2026-01-01T00:00:{number:02}.5+00:00",
            "seconds": 0.25,
            "output": {"start": len(text) - len(output), "size": len(output)},
            "artifacts": [
                {
                    "type": "stdout",
                    "dest": dest,
                    "src": None,
                    "size": len(text),
                    "sha256": hashlib.sha256(text).hexdigest(),
                }
            ],
            **changes,
        }
        file = write(self.root.parent / "outputs" / str(number), "")
        file.write_bytes(text)
        paths = Root(self.root).project(self.top)
        journal(paths, "local", Result(identity, {dest: file}, record))
        return identity

    def commit(self) -> None:
        commit_pending(self.top, Root(self.root).project(self.top), "local")

    def edit(self, edits: Mapping[str, str | None]) -> None:
        """Commit to the branch, by hand, changed files (None: removed)."""
        worktree = self.top.parent / "worktree"
        if not worktree.exists():
            git(self.top, "worktree", "add", "--quiet", "--detach", str(worktree), BRANCH)
        git(worktree, "checkout", "--quiet", "--detach", BRANCH)
        for path, text in edits.items():
            (worktree / path).unlink() if text is None else (worktree / path).write_text(text)
        git(worktree, "commit", "--quiet", "--all", "--message=edited")
        git(self.top, "branch", "--force", BRANCH, git(worktree, "rev-parse", "HEAD").strip())

    def record_path(self, identity: str) -> str:
        listed = git(self.top, "ls-tree", "-r", "--name-only", BRANCH).splitlines()
        (path,) = [path for path in listed if path.endswith(f"/{identity}.json")]
        return path

    def results(self, **options: Any) -> pandas.DataFrame:
        return snakemake_kochi.results(self.top, **options)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the records that other tests have read."""
    monkeypatch.setattr(records, "_PARSED", {})


@pytest.fixture
def project(tmp_path: Path) -> Project:
    top = tmp_path / "project"
    write(top / "fib.yaml", FIB)
    git(top, "init", "--quiet", "--initial-branch=main")
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "--message=first")
    choose_name(top, "local", "ada")
    return Project(top, tmp_path / "root")
