"""No command executes anything that a stranger has configured in the project's repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from git_traps import Marks, touched_later
from support import git

from .conftest import Outcome

Kochi = Callable[..., Outcome]


def test_no_command_executes_anything_of_the_repository_s_configuration(
    kochi: Kochi, shell: Kochi, project: Path, tmp_path: Path
) -> None:
    marks = Marks(tmp_path / "executed")
    marks.directory.mkdir()
    git(project, "init", "--quiet", "--bare", str(tmp_path / "other.git"))
    git(project, "remote", "add", "other", str(tmp_path / "other.git"))
    for repository in (project, tmp_path / "tool"):
        marks.set_all(repository)
        touched_later(repository)
    result = project / "results/local/fib/1_0.log"
    for words in (
        ("install", "-d", "tool:release"),
        ("batch", "fib.yaml", "test", "-n"),
        ("batch", "fib.yaml", "test"),
        ("show", "batch", "fib.yaml", "test"),
        ("show", "pipeline", "fib.yaml", "test"),
        ("show", "jobs"),
        ("why", result),
        ("table", "fib.yaml", "test"),
        ("artifact", "init", tmp_path / "together"),
        ("artifact", "sync"),
        ("artifact", "log"),
        ("artifact", "push", "other"),
        ("artifact", "fetch", "other"),
        ("artifact", "restore"),
        ("export", "--ro-crate", tmp_path / "crate", "fib.yaml", "test"),
        ("reproduce", result, "-n"),
        ("trace", "-o", tmp_path / "trace.json"),
        ("doctor",),
        ("clean", "-n"),
    ):
        becomes_another = words[0] in ("install", "batch", "reproduce")
        done = (shell if becomes_another else kochi)(*words)
        assert done.status == 0, (words, done)
        assert marks.executed() == [], words
