"""With a section `clean`, runs clean up by themselves: rarely, and without any harm to the run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cleaning.stage import Stage, make_old
from support import git, run, wait_until, write

from snakemake_kochi.cleaning import automatic

KOCHI = "machines:\n  local:\n    clean: {jobs: 30d, runs: never}\n"


@pytest.fixture
def project(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KOCHI_ROOT", str(stage.root.directory))
    directory = stage.directory / "project"
    write(directory / "kochi.yaml", KOCHI)
    git(directory, "init", "-q")
    return directory


def _old_job(stage: Stage, *names: str) -> None:
    stage.submit(*names)
    stage.end(len(names), stage.worker())
    stage.make_jobs_old()


def _cleaned(stage: Stage) -> dict[str, object]:
    wait_until(lambda: stage.machine.cleaned.exists() and stage.machine.cleaned.stat().st_size > 0)
    return dict(json.loads(stage.machine.cleaned.read_text()))


def _at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What is to be done at the end of this process."""
    registered: list[Callable[[], object]] = []
    others = automatic.atexit.register

    def register(do: Callable[..., object], *given: object) -> None:
        if do is automatic._start_if_due:
            registered.append(lambda: do(*given))
        else:
            others(do, *given)

    monkeypatch.setattr(automatic.atexit, "register", register)
    return registered


def test_a_run_cleans_up_at_its_end_once_a_day(
    stage: Stage, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit = _at_exit(monkeypatch)
    _old_job(stage, "old")
    automatic.clean_at_exit(stage.machine, project, lambda: False)  # a dry run
    at_exit.pop()()
    assert not stage.machine.cleaned.exists()
    automatic.clean_at_exit(stage.machine, project, lambda: True)
    at_exit.pop()()
    report = _cleaned(stage)
    assert stage.jobs() == []
    assert report["is_complete"] is True
    assert report["freed"]["jobs"]["count"] == 1  # type: ignore[index]
    # On the same day no process is started, and on the next one is.
    monkeypatch.setattr(automatic.subprocess, "Popen", lambda *_, **__: started.append(1))
    started: list[int] = []
    automatic.clean_at_exit(stage.machine, project, lambda: True)
    at_exit[0]()
    assert started == []
    make_old(stage.machine.cleaned, 2)
    at_exit[0]()
    assert started == [1]


def test_a_clean_up_that_cannot_start_ends_no_run(
    stage: Stage, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit = _at_exit(monkeypatch)
    automatic.clean_at_exit(stage.machine, project / "gone", lambda: True)
    stage.submit("job")
    at_exit.pop()()  # the directory of the run does not exist any more
    assert stage.machine.cleaned.exists()
    write(project / "kochi.yaml", "machines: [")
    done = run(
        *(sys.executable, "-P", "-m", "snakemake_kochi.cleaning", "local"), cwd=project, env={}
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_a_run_of_the_executor_starts_it(stage: Stage, project: Path) -> None:
    _old_job(stage, "old")
    rule = 'rule all:\n    output: "out"\n    shell: "echo done > {output}"\n'
    write(project / "Snakefile", rule)
    command = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "2")
    assert run(*command, cwd=project).returncode == 0
    assert (project / "out").exists()
    _cleaned(stage)
    assert stage.jobs() == [1]
