"""Artifacts that a run leaves as symbolic links."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support import git, write

from .conftest import results

pytestmark = pytest.mark.phases

LINE = "cat built.txt $KOCHI_INSTALL_PREFIX_TOOL/level > out.txt"


def different(project: Any, *lines: str) -> None:
    """Points 1, 2, ... have these lines in their scripts."""
    cases = "\n".join(f"        {n}) {line};;" for n, line in enumerate(lines, 1))
    project.edit("sum.yaml", LINE, f"case $KOCHI_PARAM_N in\n{cases}\n        esac")
    project.edit("sum.yaml", "n: [1, 2]", f"n: {list(range(1, len(lines) + 1))}")


def test_a_link_that_leaves_the_project_fails_its_run_and_is_not_published(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = write(tmp_path / "elsewhere" / "secret", "a private key\n")
    monkeypatch.setenv("SECRET", str(secret))
    different(
        project,
        'ln -s "$SECRET" out.txt',
        'mkdir inner && ln -s "$SECRET" inner/link && ln -s inner/link out.txt',
        'ln -s "$(dirname "$SECRET")" inner && ln -s inner/secret out.txt',
    )
    done = project.try_snakemake(*results(1, 2, 3), "--keep-going")
    assert done.returncode == 1
    said = done.stdout + project.logs()
    assert said.count(f"out.txt is a link to {secret}") >= 3
    assert "let the run script copy it" in said
    assert "Traceback" not in said
    assert list(project.directory.glob("results/**/*.*")) == []
    assert "private key" not in git(project.directory, "log", "-p", "--all")
    branch = git(project.directory, "ls-tree", "-r", "--name-only", "kochi_artifacts_local")
    assert branch.count("local/.kochi/failed/") == 3 and "local/sum" not in branch


def test_a_link_within_the_workspace_the_project_or_the_root_is_the_file_it_leads_to(
    finished_project: Any,
) -> None:
    project = finished_project
    different(
        project,
        "ln -s built.txt out.txt",
        f'ln -s "{project.directory}/README.md" out.txt',
        'ln -s "$KOCHI_INSTALL_PREFIX_TOOL/level" out.txt',
    )
    project.snakemake(*results(1, 2, 3))
    for number, text in (("1", "code\n"), ("2", "About\n"), ("3", "fast\n")):
        result = project.directory / f"results/local/sum/first/{number}_0.txt"
        assert not os.path.islink(result)
        assert result.read_text() == text
